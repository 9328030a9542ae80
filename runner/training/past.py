"""What a run keeps of its metrics, and the arrays that a checkpoint holds of it.

A table of the past is an array of what is no metric (steps, weights), and beside it one column a metric:

    train (n,)           steps of the logged windows;     train/<metric> (n,)        their means
    open (n,)            weights of the open window's steps; open/<metric> (n,)      their sums
    epoch (1,)           weight of the epoch's steps so far; epoch/<metric> (1,)     their sums
    epochs (n,)          steps at the ends of epochs;     epochs/<metric> (n,)       means of all their steps
    evaluations (n, 2)   steps, examples;                 evaluations/<metric> (n,)
    rates (n, 3)         steps, examples a second, milliseconds a step
    restores (n, 3)      bad steps, steps of the checkpoints, factors

All are float64. A checkpoint of an earlier version has no epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.data.base import Array
from runner.task.base import LOSS, Evaluation

_NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Restore:
    """A return to a checkpoint.

    Attributes:
      bad: step of the loss that was not finite.
      step: of the checkpoint.
      factor: what the learning rate is multiplied by from there on.
    """

    bad: int
    step: int
    factor: float


@dataclass
class Past:
    """Metrics so far. A sum is over a step's examples, weighed as the loss is; a mean is a sum by its weight.

    Attributes:
      names: of the metrics of a step, `loss` first.
      train: (step, means by name) of every logged window.
      open: (weight, sums) of each step of the window that is still open, sums in the order of `names`.
      epoch: (1 + names,), weight and sums of the steps of the epoch that were read so far.
      evaluations: (step, metrics) of every evaluation.
      rates: (step, examples a second, milliseconds a step) of every time that these were logged.
      restores: returns to a checkpoint after a loss that was not finite.
      epochs: (step, means by name) of every epoch that was trained to its end.
    """

    names: tuple[str, ...]
    train: list[tuple[int, dict[str, float]]]
    open: list[Array]
    epoch: Array
    evaluations: list[tuple[int, Evaluation]]
    rates: list[tuple[int, float, float]]
    restores: list[Restore]
    epochs: list[tuple[int, dict[str, float]]] = field(default_factory=list)


def begin(names: Sequence[str]) -> Past:
    """Returns the past of a run that begins."""
    return Past((LOSS, *names), [], [], np.zeros(2 + len(names)), [], [], [])


def to_arrays(past: Past) -> dict[str, Array]:
    """Returns a past as named arrays."""
    steps = np.array(past.open, np.float64).reshape(-1, 1 + len(past.names))
    found: dict[str, Array | list[float]] = {
        "train": [step for step, _ in past.train],
        "open": steps[:, 0],
        "epoch": past.epoch[:1],
        "epochs": [step for step, _ in past.epochs],
        "evaluations": np.array([(at, one.examples) for at, one in past.evaluations], np.float64).reshape(-1, 2),
        "rates": np.array(past.rates, np.float64).reshape(-1, 3),
        "restores": np.array([(r.bad, r.step, r.factor) for r in past.restores], np.float64).reshape(-1, 3),
    }
    for column, name in enumerate(past.names, start=1):
        found[f"train/{name}"] = [means[name] for _, means in past.train]
        found[f"open/{name}"] = steps[:, column]
        found[f"epoch/{name}"] = past.epoch[column : column + 1]
        found[f"epochs/{name}"] = [means[name] for _, means in past.epochs]
    told = [one.metrics for _, one in past.evaluations]
    for name in told[-1] if told else ():
        if all(name in metrics for metrics in told):  # a run may have gone on with fewer, as without task.top_k
            found[f"evaluations/{name}"] = [metrics[name] for metrics in told]
    return {name: np.array(array, np.float64, order="C") for name, array in found.items()}


def from_arrays(arrays: Mapping[str, Array], batch_size: int = 1) -> Past:
    """Returns the past that arrays tell of.

    Args:
      arrays: as `check_arrays` lets them pass.
      batch_size: of the run; the sums of format 1 are of steps and not of examples.
    """
    if _is_format_1(arrays):
        arrays = _from_format_1(arrays, batch_size)
    arrays = _with_epochs(arrays)
    names = _names(arrays, "train")
    columns = [arrays[f"open/{name}"] for name in names]
    evaluated = _names(arrays, "evaluations")
    return Past(
        names,
        _means(arrays, "train", names),
        list(np.column_stack([arrays["open"], *columns])),
        np.concatenate([arrays["epoch"], *(arrays[f"epoch/{name}"] for name in names)]),
        [
            (int(at), _evaluation({name: float(arrays[f"evaluations/{name}"][row]) for name in evaluated}, int(count)))
            for row, (at, count) in enumerate(arrays["evaluations"])
        ],
        [(int(at), float(rate), float(ms)) for at, rate, ms in arrays["rates"]],
        [Restore(int(bad), int(step), float(factor)) for bad, step, factor in arrays["restores"]],
        _means(arrays, "epochs", names),
    )


def _means(arrays: Mapping[str, Array], table: str, names: Sequence[str]) -> list[tuple[int, dict[str, float]]]:
    return [
        (int(step), {name: float(arrays[f"{table}/{name}"][row]) for name in names})
        for row, step in enumerate(arrays[table])
    ]


def _with_epochs(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """Returns the arrays with a table of no epochs where they have none, as those of an earlier version."""
    none = np.zeros(0)
    more = {"epochs": none} | {f"epochs/{name}": none for name in _names(arrays, "train")}
    return arrays if "epochs" in arrays else {**arrays, **more}


def check_arrays(step: int, arrays: Mapping[str, Array]) -> None:
    """Checks that arrays are what `to_arrays` returned after so many steps, in this version or in the one before.

    Args:
      step: training steps done.
      arrays: as they were read.

    Raises:
      ValueError: names the one that is not.
    """
    if _is_format_1(arrays):
        _check_form(arrays, _FORMAT_1 | {name: form for name, form in _LATER_FORMAT_1.items() if name in arrays})
        arrays = _from_format_1(arrays, 1)
    arrays = _with_epochs(arrays)
    names = _names(arrays, "train")
    evaluated = _names(arrays, "evaluations")
    tables = [("train", names), ("open", names), ("epoch", names), ("epochs", names), ("evaluations", evaluated)]
    columns: dict[str, tuple[int, int | None]] = {
        f"{table}/{name}": (1, None) for table, those in tables for name in those
    }
    _check_form(arrays, _TABLES | columns)
    if LOSS not in names or (len(arrays["evaluations"]) and LOSS not in evaluated):
        raise ValueError(f"its history must hold the {LOSS}")
    for table, those in tables:
        if any(len(arrays[f"{table}/{name}"]) != len(arrays[table]) for name in those):
            raise ValueError(f"{table} of its history has another form")
    counts = [*arrays["epoch"], *arrays["open"], *arrays["evaluations"][:, 1], *arrays["restores"][:, :2].flat]
    if len(arrays["epoch"]) != 1 or not all(np.isfinite(count) and count >= 0 for count in counts):
        raise ValueError("its history must count in numbers")
    for name in ("train", "epochs", "evaluations", "rates"):
        at = arrays[name] if arrays[name].ndim == 1 else arrays[name][:, 0]
        if not bool(np.all((at > 0) & (at <= step) & (at == np.floor(at))) and np.all(np.diff(at) > 0)):
            raise ValueError(f"{name} of its history must have steps up to {step}, in order")


# Rank and last dim of each table; None: any.
_TABLES: dict[str, tuple[int, int | None]] = {
    "train": (1, None),
    "open": (1, None),
    "epoch": (1, 1),
    "epochs": (1, None),
    "evaluations": (2, 2),
    "rates": (2, 3),
    "restores": (2, 3),
}


def _check_form(arrays: Mapping[str, Array], wanted: Mapping[str, tuple[int, int | None]]) -> None:
    if set(arrays) != set(wanted):
        raise ValueError(f"its history must hold {', '.join(wanted)}")
    for name, (rank, last) in wanted.items():
        array = arrays[name]
        dtype = np.int64 if name == _LAST_TOTALS else np.float64
        if array.ndim != rank or array.dtype != dtype or last not in (None, array.shape[-1]):
            raise ValueError(f"{name} of its history has another form")


def _names(arrays: Mapping[str, Array], table: str) -> tuple[str, ...]:
    """Returns the metrics of a table, the loss first."""
    found = {key.removeprefix(f"{table}/") for key in arrays if key.startswith(f"{table}/")}
    return tuple(sorted(found, key=lambda name: (name != LOSS, name)))


def _evaluation(metrics: Mapping[str, float], examples: int) -> Evaluation:
    return Evaluation(metrics, examples, {}, _NOTHING)


# Format 1 knew two metrics, as the columns of its tables, and counted steps in place of weights.
_LAST_TOTALS = "confusion"
_COLUMNS_OF_FORMAT_1 = (LOSS, "accuracy")
_FORMAT_1: dict[str, tuple[int, int | None]] = {
    "train": (2, 3),
    "open": (2, 2),
    "epoch": (1, 3),
    "evaluations": (2, 4),
    _LAST_TOTALS: (2, None),
}
_LATER_FORMAT_1: dict[str, tuple[int, int | None]] = {"restores": (2, 3), "rates": (2, 3)}


def _is_format_1(arrays: Mapping[str, Array]) -> bool:
    return _LAST_TOTALS in arrays


def _from_format_1(arrays: Mapping[str, Array], batch_size: int) -> dict[str, Array]:
    """Returns the arrays of format 1 in the present form; its last evaluation's totals are left out."""
    none = np.zeros((0, 3))
    train = arrays["train"]
    steps = arrays["open"]
    done = arrays["evaluations"]
    found = {
        "train": train[:, 0],
        "open": np.full(len(steps), float(batch_size)),
        "epoch": arrays["epoch"][:1] * batch_size,
        "evaluations": done[:, [0, 3]],
        "rates": arrays.get("rates", none),
        "restores": arrays.get("restores", none),
    }
    for column, name in enumerate(_COLUMNS_OF_FORMAT_1):
        found[f"train/{name}"] = train[:, 1 + column]
        found[f"open/{name}"] = steps[:, column] * batch_size
        found[f"epoch/{name}"] = arrays["epoch"][1 + column : 2 + column] * batch_size
        found[f"evaluations/{name}"] = done[:, 1 + column]
    return found
