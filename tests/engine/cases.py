"""Configs of small engines and the batches that they are compared on."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.config.schema import (
    ClipConfig,
    LayoutConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
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

_ADAM: dict[str, Any] = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_COSINE = ScheduleConfig(name="cosine", warmup_steps=10, final_factor=0.1)
_EXPONENTIAL = ScheduleConfig(name="exponential", decay_steps=10, decay_rate=0.8)
_STAIRS = ScheduleConfig(name="exponential", decay_steps=7, decay_rate=0.7, staircase=True)
_PIECEWISE = ScheduleConfig(name="piecewise", boundaries=[15, 30], factors=[1.0, 0.5, 0.1])

OPTIMIZERS = {
    "adam": OptimizerConfig("adam", 0.001, **_ADAM),
    "adam_global_norm_cosine": OptimizerConfig(
        "adam", 0.001, **_ADAM, clip=ClipConfig(global_norm=0.5), schedule=_COSINE
    ),
    "adamw_norm_exponential": OptimizerConfig(
        "adamw", 0.003, **_ADAM, weight_decay=0.004, clip=ClipConfig(norm=0.3), schedule=_EXPONENTIAL
    ),
    "sgd": OptimizerConfig("sgd", 0.05, momentum=0.0, nesterov=False),
    "sgd_momentum_value_piecewise": OptimizerConfig(
        "sgd", 0.05, momentum=0.9, nesterov=False, clip=ClipConfig(value=0.01), schedule=_PIECEWISE
    ),
    "sgd_nesterov_stairs": OptimizerConfig("sgd", 0.05, momentum=0.9, nesterov=True, schedule=_STAIRS),
    "rmsprop": OptimizerConfig("rmsprop", 0.001, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False),
    "rmsprop_centered_momentum_norm": OptimizerConfig(
        "rmsprop", 0.001, rho=0.9, momentum=0.5, epsilon=1e-4, centered=True, clip=ClipConfig(global_norm=1.0)
    ),
}


def config(
    axes: dict[str, int],
    optimizer: OptimizerConfig | None = None,
    target: str = "runner.model.mlp.sequential",
    **options: Any,
) -> RunConfig:
    """Returns a config of the MLP 784-128-10 on a mesh, as the checks leave one."""
    made = RunConfig(mesh=MeshConfig(axes=axes), layout=LayoutConfig(), optimizer=optimizer or OPTIMIZERS["adam"])
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
