"""The networks, as plain nn.Modules without any state of a request. `build.load` makes them from a model directory."""
