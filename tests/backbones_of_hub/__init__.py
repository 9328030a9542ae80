"""Every backbone of KerasHub, tiny, planned and proven on a mesh: `python -m tests.backbones_of_hub`."""
