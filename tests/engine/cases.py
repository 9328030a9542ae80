"""Configs of small engines and the batches that they are compared on."""

from typing import Any

import numpy as np

from runner.config.schema import LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine.base import HostBatches
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys

STEPS = 50
CLASSES = 10
INPUT_SHAPE = (28, 28, 1)
BATCH = 128

ADAM = OptimizerConfig("adam", 0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7)


def config(
    axes: dict[str, int],
    optimizer: OptimizerConfig | None = None,
    target: str = "runner.model.mlp.sequential",
    **options: Any,
) -> RunConfig:
    """Returns a config of the MLP 784-128-10 on a mesh, as the checks leave one."""
    made = RunConfig(mesh=MeshConfig(axes=axes), layout=LayoutConfig(), optimizer=optimizer or ADAM)
    return with_keys(
        made,
        {
            "model": ModelConfig(target, options or {"hidden": [128], "activation": "tanh"}),
            "dataset.batch_size": BATCH,
        },
    )


def data(shape: tuple[int, ...] = INPUT_SHAPE, classes: int = CLASSES) -> DataSpec:
    """Returns the specs of images and labels, and their task."""
    names = tuple(map(str, range(classes)))
    arrays = {
        "image": ArraySpec(shape, "uint8", ("height", "width", "channel")),
        "label": ArraySpec((), "int32", names=names),
    }
    return DataSpec(arrays, make_task(TaskConfig(), arrays))


def stack(images: Array, labels: Array, weights: Array | None = None) -> HostBatches:
    """Returns batches of images (K, B, H, W, D) and labels (K, B); all are real unless weights say otherwise."""
    weights = np.ones(labels.shape, np.float32) if weights is None else weights
    return HostBatches({"image": images, "label": labels, WEIGHT: weights}, weights, len(labels))


def batches(steps: int = STEPS, batch: int = BATCH) -> HostBatches:
    """Returns scikit-learn's digits, enlarged threefold and framed to MNIST's 28 x 28, as one stack of batches."""
    from sklearn.datasets import load_digits

    held = load_digits()
    order = np.random.default_rng(3).permutation(len(held.images))
    rows = np.resize(order, steps * batch)
    large = np.pad(np.kron(held.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    images = (large * 255 / 16).round().astype(np.uint8)[rows].reshape(steps, batch, *INPUT_SHAPE)
    return stack(images, held.target[rows].astype(np.int32).reshape(steps, batch))
