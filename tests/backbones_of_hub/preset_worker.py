"""Writes a preset, and compares one with an exported file: `python -m tests.backbones_of_hub.preset_worker`.

`write BACKBONE FOLDER` writes a tiny backbone by `save_to_preset`; `compare FOLDER FILE` prints which variables of the
file's backbone differ from the preset's. A file holds adapters added to the kernels that they are of.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

from runner.model import keras_hub as hub
from runner.model.hub import options
from tests.backbones_of_hub import tiny


def write(name: str, folder: str) -> None:
    """Writes a backbone of seeded weights."""
    keras.utils.set_random_seed(3)
    backbone_class = getattr(hub.keras_hub.models, name)
    backbone_class(**options.instantiated(hub.keras_hub, keras, tiny.config(name))).save_to_preset(folder)


def compare(folder: str, file: str) -> None:
    """Prints the paths of what differs, and the largest difference."""
    before = hub.keras_hub.models.Backbone.from_preset(folder)
    model = keras.models.load_model(file)
    after = {variable.path: np.asarray(variable) for variable in model.weights}
    apart = {v.path: float(np.abs(np.asarray(v) - after[v.path]).max()) for v in before.weights}
    changed = [path for path, difference in apart.items() if difference > 0]
    print(json.dumps({"changed": changed, "largest": max(apart.values())}))


if __name__ == "__main__":
    hub.load()
    {"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:])
