"""Brings a model from a hub: `cosyvoice-worker fetch-model`."""
