"""What a row of the comparison is: a Keras program as its user has it, and the runner's options for the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Splits = Mapping[str, Arrays]

SEED = 7
EPOCHS = 2
BATCH = 16
TRAIN, TEST = 42, 18  # neither is a multiple of the batch size, and the last batches are no multiple of 8 devices
COMMON = (
    f"dataset.batch_size={BATCH}", "dataset.remainder=pad", "dataset.shuffle=false", f"trainer.epochs={EPOCHS}",
    f"trainer.seed={SEED}", "trainer.progress=none", "trainer.log_model=false", "trainer.log_every_steps=1",
)  # fmt: skip
# Keras's SGD(0.1), unless a row has another optimizer.
OPTIMIZER = ("optimizer=sgd", "optimizer.learning_rate=0.1", "optimizer.momentum=0")
# Sums of float32 in another order, over the steps of two epochs; relative to the largest number of an array.
ROUNDING = 2e-5


@dataclass
class Program:
    """What a Keras program does after its imports.

    Attributes:
      model: not compiled.
      compile: arguments of `compile`.
      fit: arguments of `fit` beside the data; they replace those of the harness, such as `epochs`.
      before: what the program computes of the arrays of each split before `fit`.
    """

    model: Any
    compile: dict[str, Any]
    fit: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Arrays], Arrays] = lambda arrays: arrays


@dataclass(frozen=True)
class Row:
    """A Keras program beside the runner.

    Attributes:
      name: that of its function.
      program: makes the Keras program; takes the Keras module.
      data: arrays by split.
      overrides: of the runner, beside `COMMON`.
      target: arrays that `fit` gets as y.
      weight: array that `fit` gets as sample_weight; None: none.
      metrics: Keras's name of a metric -> the runner's, where they differ.
      engine: of the runner.
      shuffles: Keras gets each epoch in the order that the runner draws.
      takes: weights that are compared: `last`, or those of the `best` evaluation.
      tolerance: relative difference.
      why: reason of a tolerance other than `ROUNDING`.
      meant: what differs on purpose (a name of Keras's history, `weights`, or `rejected`) -> the reason.
      always: it runs with all tests, not only at night.
    """

    name: str
    program: Callable[[Any], Program]
    data: Callable[[], Splits]
    overrides: Sequence[str] = ()
    target: Sequence[str] = ("label",)
    weight: str | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    engine: str = "jax"
    shuffles: bool = False
    takes: str = "last"
    tolerance: float = ROUNDING
    why: str = ""
    meant: Mapping[str, str] = field(default_factory=dict)
    always: bool = False

    def given(self, arrays: Arrays) -> tuple[Any, Any, Any]:
        """Returns x, y and sample_weight of `fit` from the arrays of a split."""
        x = {name: array for name, array in arrays.items() if name not in (*self.target, self.weight)}
        y = {name: arrays[name] for name in self.target}
        weight = None if self.weight is None else arrays[self.weight]
        return _only(x), _only(y) if y else None, weight


def _only(arrays: Arrays) -> Any:
    """Returns the array if there is one, as programs with one input pass it."""
    if len(arrays) == 1:
        (array,) = arrays.values()
        return array
    return dict(arrays)


ROWS: dict[str, Row] = {}


def row(
    name: str,
    data: Callable[[], Splits],
    overrides: str = "",
    *,
    engines: Sequence[str] = ("jax",),
    meant: Mapping[str, str] | None = None,
    always: bool = False,
    **more: Any,
) -> Any:
    """Adds a row for the function that makes its program; one per engine, with the engine in the name of a second.

    Args:
      name, data, always, more: see `Row`.
      overrides: as on a command line.
      engines: of the runner; the row of the first one is the one that always runs.
      meant: see `Row`; a key may be several names.
    """
    reasons = {each: reason for names, reason in (meant or {}).items() for each in names.split()}

    def add(program: Callable[[Any], Program]) -> Callable[[Any], Program]:
        for engine in engines:
            unique = name if engine == "jax" else f"{name}_{engine}"
            assert unique not in ROWS, unique
            ROWS[unique] = Row(
                unique, program, data, overrides.split(), engine=engine, meant=reasons,
                always=always and engine == engines[0], **more,
            )  # fmt: skip
        return program

    return add
