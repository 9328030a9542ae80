"""Training on images that are flipped and cropped learns masks, with and without a channel, on both engines."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}
NET = """
def build(keras, inputs, outputs):
    image = keras.Input(inputs["image"].shape, name="image")
    return keras.Model(image, keras.layers.Conv2D(outputs.units, 1, name="head")(image))
"""


@pytest.mark.parametrize("engine", list(LIBRARIES))
@pytest.mark.parametrize("channel", [(), (1,)], ids=["plain", "channel"])
def test_a_pixelwise_model_learns_masks_that_are_moved_with_their_images(
    tmp_path: Path, engine: str, channel: tuple[int, ...]
) -> None:
    """A mask that is not moved with its image is independent of the pixels, and half of it is predicted."""
    rng = np.random.default_rng(0)
    bright = rng.random((256, 8, 8)) < 0.5
    image = np.where(bright[..., None], 255, 60).repeat(3, axis=-1).astype(np.uint8)
    mask = bright.reshape(256, 8, 8, *channel).astype(np.int32)
    np.savez(tmp_path / "data.npz", image=image, mask=mask)
    (tmp_path / "net.py").write_text(NET)
    overrides = [
        f"engine={engine}",
        "mesh=batch2",
        "dataset=arrays",
        "dataset.path=data.npz",
        "dataset.batch_size=32",
        "dataset.augment=[{name: flip, direction: both}, {name: random_crop, padding: 2}]",
        "task=segmentation",
        "task.target=mask",
        "task.classes=2",
        "task.ignore_index=9",
        "model=custom",
        "model._target_=net.build",
        "optimizer.learning_rate=0.1",
        "trainer.epochs=4",
        "tracking=none",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "runner", *overrides]
    done = forks.run(command, library=LIBRARIES[engine], cwd=tmp_path, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = re.findall(r"epoch 4/4 train loss \S+, accuracy ([\d.]+)", done.stdout)
    assert float(accuracy[0]) > 0.95, done.stdout[-2000:]
