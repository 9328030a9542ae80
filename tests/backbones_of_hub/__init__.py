"""Every backbone of KerasHub, tiny, planned and verified on a mesh: `python -m tests.backbones_of_hub`."""
