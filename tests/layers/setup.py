"""What both sides of a comparison begin with: config, data, batches, and starting values at a generic point."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from runner.config.schema import OptimizerConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine.base import HostBatches
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases as engine_cases
from tests.layers.case import Case
from tests.layers.network import UNITS, input_name, input_specs
from tests.layers.table import by_name

BATCH, STEPS, RATE, MOMENTUM = 8, 2, 0.01, 0.9
MESHES: Mapping[str, dict[str, int]] = {
    "single": {"batch": 1},
    "batch8": {"batch": 8},
    "batch4_model2": {"batch": 4, "model": 2},
}
_TARGET = "target"
_OWNER = re.compile(r"(?:layer|weighted|before|then|head)(\d+)(?:[_/]|$)")
_POSITIVE = re.compile("variance|stddev")

Arrays = dict[str, Array]


def config(mesh: str, names: Sequence[str]) -> RunConfig:
    """Returns the config of a run of some cases on a mesh."""
    optimizer = OptimizerConfig("sgd", RATE, momentum=MOMENTUM, nesterov=False)
    made = engine_cases.config(dict(MESHES[mesh]), optimizer, "tests.layers.on_jax.build", cases=list(names))
    return with_keys(
        made,
        {
            "engine.name": "jax",
            "dataset.batch_size": BATCH,
            "engine.compilation_cache": False,
        },
    )


class Setup:
    """Some cases as one model: what is built, fed and compared.

    Attributes:
      names: of the cases.
      cases: the same.
      data: specs of the arrays, and the task: a regression on two numbers a case.
    """

    def __init__(self, names: Sequence[str]) -> None:
        known = by_name()
        self.names = list(names)
        self.cases: list[Case] = [known[name] for name in names]
        width = UNITS * len(names)
        specs = input_specs(self.cases) | {_TARGET: ArraySpec((width,), "float32")}
        self.data = DataSpec(specs, make_task(TaskConfig("regression", [_TARGET]), specs))
        self.arrays: Arrays = {_TARGET: np.random.default_rng(1).normal(size=(BATCH, width)).astype(np.float32)}
        for number, case in enumerate(self.cases):
            for index, tensor in enumerate(case.inputs):
                self.arrays[input_name(number, index)] = tensor.drawn(BATCH, f"{case.name} {index}")

    @property
    def inputs(self) -> Array | Arrays:
        """What the model is called with."""
        found = {name: array for name, array in self.arrays.items() if name != _TARGET}
        return found if len(found) > 1 else next(iter(found.values()))

    @property
    def target(self) -> Array:
        """(B, two a case)."""
        return self.arrays[_TARGET]

    def batch(self) -> HostBatches:
        """Returns the one batch as a call of one step."""
        weights = np.ones((1, BATCH), np.float32)
        arrays = {name: array[None] for name, array in self.arrays.items()}
        return HostBatches(arrays | {WEIGHT: weights}, weights, 1)

    def owner(self, path: str) -> int | None:
        """Returns the case that a variable is of, by its place; None where its path does not tell."""
        match = _OWNER.match(path)
        return int(match.group(1)) if match else None


def generic(initial: Mapping[str, Array]) -> Arrays:
    """Returns starting values off kinks and symmetric starts: no bias is 0, no scale 1; a variance stays positive."""
    found = {}
    for path, value in initial.items():
        rng = np.random.default_rng(zlib.crc32(path.encode()))
        if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
            found[path] = value
        elif _POSITIVE.search(path):
            found[path] = (value * rng.uniform(0.5, 1.5, value.shape)).astype(value.dtype)
        else:
            found[path] = (value + 0.2 * rng.normal(size=value.shape)).astype(value.dtype)
    return found
