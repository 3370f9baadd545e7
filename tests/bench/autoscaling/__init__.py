"""How many GPUs each way of scaling costs over a day, and how many requests it fails: a simulator.

`python -m tests.bench.autoscaling`; what is modelled and what is assumed stands in `traffic`, `pool` and `setups`.
"""
