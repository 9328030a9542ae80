"""Backbones of KerasHub, tiny, verified on a mesh: `python -m tests.backbones_of_hub [names]`."""
