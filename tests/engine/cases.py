"""Configs of small engines and the batches that they are compared on."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.engine.base import HostBatches
from runner.schema import ClipConfig, LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig

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
    "adam": OptimizerConfig(**_ADAM),
    "adam_global_norm_cosine": OptimizerConfig(**_ADAM, clip=ClipConfig(global_norm=0.5), schedule=_COSINE),
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
    layout = LayoutConfig(inputs={"image": ["batch", None, None, None], "label": ["batch"]})
    made = RunConfig(mesh=MeshConfig(axes=axes), layout=layout, optimizer=optimizer or OPTIMIZERS["adam"])
    made.model = ModelConfig(target, options or {"hidden": [128]})
    return made


def batches(steps: int = STEPS, batch: int = BATCH) -> HostBatches:
    """Returns uint8 noise with labels that a fixed linear teacher gives it, as one stack.

    Noise lights every pixel. Pictures of digits leave some dark, whose gradients are of Adam's epsilon's size: there
    an update of size learning_rate hangs on the last bits of a sum, on one device as on many.
    """
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (steps, batch, *INPUT_SHAPE), np.uint8)
    teacher = rng.normal(size=(int(np.prod(INPUT_SHAPE)), CLASSES))
    labels = ((images.reshape(steps, batch, -1) / 255.0 - 0.5) @ teacher).argmax(-1).astype(np.int32)
    return HostBatches(images, labels, np.ones((steps, batch), np.float32), steps)
