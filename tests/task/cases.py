"""Batches with outputs for every loss, and what Keras calls the same loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from runner.config.schema_task import OPTIONS, TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.task.base import Task
from runner.task.registry import make_task

Arrays = dict[str, np.ndarray]
REAL, PADDED = 13, 3  # examples of a batch
CLASSES = 5
WEIGHTS = [1.0, 0.5, 2.0, 3.0, 0.25]


@dataclass(frozen=True)
class Case:
    """A batch with a model's outputs, its last examples padding of the others' arrays with outputs of NaN.

    Attributes:
      config: the task's.
      specs: of the arrays.
      batch: by name, with `weight`.
      outputs: float32 (B, ...).
      loss: Keras's class of the same loss.
      options: its arguments.
      target: what Keras is given for it, of the real examples.
      weights: of the real examples; None: all 1.
      terms: number of loss terms that Keras's mean is over.
      libraries: that compute it.
    """

    config: TaskConfig
    specs: Mapping[str, ArraySpec]
    batch: Arrays
    outputs: np.ndarray
    loss: str
    options: Mapping[str, Any]
    target: np.ndarray
    weights: np.ndarray | None = None
    terms: float = REAL
    libraries: tuple[str, ...] = ("tensorflow", "jax.numpy")

    @property
    def task(self) -> Task:
        return make_task(self.config, self.specs)


def config(
    name: str,
    targets: Sequence[str] = (),
    example_weight: str | None = None,
    inputs: list[str] | None = None,
    **options: Any,
) -> TaskConfig:
    return TaskConfig(name, list(targets), inputs, example_weight, asdict(OPTIONS[name](**options)))


def padded(real: Arrays, outputs: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """Returns a batch with examples of padding, and its outputs, NaN in them."""
    rows = [*range(len(outputs)), *[0] * PADDED]
    batch = {name: array[rows] for name, array in real.items()}
    batch[WEIGHT] = np.array([1.0] * len(outputs) + [0.0] * PADDED, np.float32)
    whole = outputs[rows].astype(np.float32)
    whole[len(outputs) :] = np.nan
    return batch, whole


def make() -> dict[str, Case]:
    return _classification() | _binary() | _multilabel() | _positions() | _regression()


def _classification() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    label = rng.choice([0, 1, 3, 4], REAL).astype(np.int32)  # none of class 2
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    logits = rng.normal(scale=3.0, size=(REAL, CLASSES)).astype(np.float32)
    logits[0], logits[1], logits[2] = 80.0, [-90, 90, 0, 0, 0], [1e4, -1e4, 0, 3, 5]
    logits[3, 1] = logits[3, 4] = logits[3].max() + 1.0  # two outputs that are equal
    names = tuple("abcde")
    specs = {
        "x": ArraySpec((2,), "float32"),
        "label": ArraySpec((), "int32", (), names),
        "own": ArraySpec((), "float32"),
    }
    one_hot = np.eye(CLASSES, dtype=np.float32)[label]
    mixed = (0.7 * one_hot + 0.3 * one_hot[::-1]).astype(np.float32)
    by_class = np.array(WEIGHTS, np.float32)
    batch, outputs = padded({"x": x, "label": label, "own": own}, logits)
    soft_batch, _ = padded({"x": x, "label": mixed}, logits)
    soft_specs = {"x": specs["x"], "label": ArraySpec((CLASSES,), "float32", (), names)}
    sparse, dense = "SparseCategoricalCrossentropy", "CategoricalCrossentropy"
    unweighted = {name: specs[name] for name in ("x", "label")}

    def case(
        loss: str, target: np.ndarray, weights: np.ndarray | None = None, smooth: float = 0.0, **more: Any
    ) -> Case:
        weighted = more.get("example_weight") is not None
        told = {"from_logits": True} | ({"label_smoothing": smooth} if smooth else {})
        made = config("classification", label_smoothing=smooth, **more)
        return Case(made, specs if weighted else unweighted, batch, outputs, loss, told, target, weights)

    # Near 0 and 1 the two versions of Keras differ: one clips a probability, the other also adds its epsilon.
    inside = np.clip(logits.astype(np.float64), -3.0, 3.0)
    chances = np.exp(inside)
    chances = (chances / chances.sum(-1, keepdims=True)).astype(np.float32)
    inner = _padded(inside.astype(np.float32))
    # Keras scales its outputs to a sum of 1.
    scaled = _padded(2.0 * chances)
    smooth_chances = config("classification", from_logits=False, label_smoothing=0.1)
    focal = {"gamma": 3.0, "alpha": 0.4}
    of_focal = config("classification", loss="categorical_focal_crossentropy", loss_options=focal)
    smooth_soft = config("classification", label_smoothing=0.2)
    logits_of = {"from_logits": True}
    return {
        "classes": case(sparse, label),
        "both weighted": case(
            dense, one_hot, own * by_class[label], smooth=0.3, example_weight="own", class_weights=WEIGHTS
        ),
        "outputs of a softmax smoothed": Case(
            smooth_chances, unweighted, batch, scaled, dense, {"label_smoothing": 0.1}, one_hot
        ),
        "probabilities smoothed": Case(
            smooth_soft, soft_specs, soft_batch, outputs, dense, logits_of | {"label_smoothing": 0.2}, mixed
        ),
        "focal": Case(
            *(of_focal, unweighted, batch, inner, "CategoricalFocalCrossentropy", logits_of | focal, one_hot),
            libraries=("jax.numpy",),
        ),
    }


def _binary() -> dict[str, Case]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    label = (rng.random(REAL) < 0.3).astype(np.int32)
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    logits = rng.normal(scale=3.0, size=(REAL, 1)).astype(np.float32)
    logits[0], logits[1], logits[2] = 90.0, -90.0, 0.0
    specs = {"x": ArraySpec((2,), "float32"), "label": ArraySpec((), "int32"), "own": ArraySpec((), "float32")}
    batch, outputs = padded({"x": x, "label": label, "own": own}, logits)
    # Near 0 and 1 the two versions of Keras differ: one clips a probability, the other also adds its epsilon.
    chances = (1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -2.0, 2.0)))).astype(np.float32)
    target = label[:, None].astype(np.float32)
    by_class = np.where(label > 0, 3.0, 0.5).astype(np.float32)
    loss, as_logits = "BinaryCrossentropy", {"from_logits": True}
    unweighted = {name: specs[name] for name in ("x", "label")}
    weighted = config("binary", example_weight="own", class_weights=[0.5, 3.0])
    return {
        "binary": Case(config("binary"), unweighted, batch, outputs, loss, as_logits, target),
        "binary weighted": Case(weighted, specs, batch, outputs, loss, as_logits, target, own * by_class),
        "binary probabilities": Case(
            config("binary", from_logits=False), unweighted, batch, _padded(chances), loss, {}, target
        ),
    }


def _padded(outputs: np.ndarray) -> np.ndarray:
    return padded({}, outputs)[1]


def _positions() -> dict[str, Case]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    label = rng.choice([0, 1, 3, 4, 255], (REAL, 3, 4, 1)).astype(np.uint8)  # none of class 2
    logits = rng.normal(scale=3.0, size=(REAL, 3, 4, CLASSES)).astype(np.float32)
    logits[0], logits[1, 0] = 80.0, logits[1, 1]
    share = rng.uniform(0.0, 2.0, label.shape).astype(np.float32)
    share[label == 255] = 0.0
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    batch, outputs = padded({"x": x, "label": label, "share": share, "own": own}, logits)
    specs = {
        "x": ArraySpec((2,), "float32"),
        "label": ArraySpec((3, 4, 1), "uint8", (), tuple("abcde")),
        "share": ArraySpec((3, 4, 1), "float32"),
        "own": ArraySpec((), "float32"),
    }
    flat = label[..., 0].astype(np.int32)
    known = np.where(flat == 255, 0, flat)
    counted = (flat != 255).astype(np.float32)
    weights = counted * share[..., 0] * np.array(WEIGHTS, np.float32)[known] * own.reshape(REAL, 1, 1)
    soft = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    soft = (soft / soft.sum(-1, keepdims=True)).astype(np.float32)
    loss, as_logits = "SparseCategoricalCrossentropy", {"from_logits": True}
    ignore = {"inputs": ["x"], "ignore_index": 255}
    one_hot = np.eye(CLASSES, dtype=np.float32)[known]
    smooth = config("positions", **ignore, label_smoothing=0.2)
    weighted = config("positions", **ignore, label_weight="share", class_weights=WEIGHTS, example_weight="own")
    of_chances = config("positions", **ignore, from_logits=False)
    dense = "CategoricalCrossentropy"
    made = {
        "positions smoothed": Case(
            smooth, specs, batch, outputs, dense, as_logits | {"label_smoothing": 0.2}, one_hot, counted
        ),
        "positions weighted": Case(weighted, specs, batch, outputs, loss, as_logits, known, weights),
        "positions probabilities": Case(of_chances, specs, batch, _padded(soft), loss, {}, known, counted),
    }
    # Keras's mean with weights is over all positions.
    return {name: replace(case, terms=float(counted.size)) for name, case in made.items()}


def _multilabel() -> dict[str, Case]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    labels = (rng.random((REAL, 4)) < [0.5, 0.2, 0.9, 0.0]).astype(np.uint8)  # none has the last
    logits = rng.normal(scale=2.0, size=(REAL, 4)).astype(np.float32)
    logits[0], logits[1] = [0.0, -100.0, 100.0, 0.0], [100.0, -100.0, 1e4, -1e4]
    batch, outputs = padded({"x": x, "labels": labels}, logits)
    specs = {"x": ArraySpec((2,), "float32"), "labels": ArraySpec((4,), "uint8", (), tuple("pqrs"))}
    columns = {f"is_{i}": labels[:, i].astype(np.float32) for i in range(4)}
    column_batch, _ = padded({"x": x} | columns, logits)
    column_specs = {"x": specs["x"]} | {name: ArraySpec((), "float32") for name in columns}
    told, target = {"from_logits": True}, labels.astype(np.float32)
    loss = "BinaryCrossentropy"
    return {
        "labels smoothed": Case(
            config("multilabel", label_smoothing=0.2),
            specs,
            batch,
            outputs,
            loss,
            told | {"label_smoothing": 0.2},
            target,
        ),
        "labels of a sigmoid": Case(
            config("multilabel", from_logits=False, label_smoothing=0.2),
            specs,
            batch,
            _padded((1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -2.0, 2.0)))).astype(np.float32)),
            loss,
            {"label_smoothing": 0.2},
            target,
        ),
        "label columns": Case(
            config("multilabel", list(columns), threshold=0.3),
            column_specs,
            column_batch,
            outputs,
            loss,
            told,
            target,
        ),
    }


def _regression() -> dict[str, Case]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    found: dict[str, Case] = {}
    for shape, name, loss, options in (
        ((), "mean_squared_error", "MeanSquaredError", {}),
        ((3,), "mean_absolute_error", "MeanAbsoluteError", {}),
        ((2, 3), "huber", "Huber", {"delta": 0.7}),
        ((2, 3), "tversky", "Tversky", {"alpha": 0.3, "axis": (1, 2)}),
    ):
        y = rng.uniform(0.1, 0.9, (REAL, *shape)).astype(np.float32)
        outputs = (
            np.clip(y + 0.2 * rng.normal(size=y.shape), 0.05, 0.95).astype(np.float32).reshape(REAL, *shape or (1,))
        )
        batch, whole = padded({"x": x, "y": y, "own": own}, outputs)
        specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec(shape, "float32"), "own": ArraySpec((), "float32")}
        is_weighted = len(shape) < 2  # Keras spreads an example's weight over its vectors
        given = {"loss_options": {"alpha": 0.3}} if name == "tversky" else options
        found[name] = Case(
            config("regression", loss=name, example_weight="own" if is_weighted else None, **given),
            specs if is_weighted else {key: specs[key] for key in ("x", "y")},
            batch,
            whole,
            loss,
            options,
            y.reshape(REAL, *shape or (1,)),
            own if is_weighted else None,
            libraries=("jax.numpy",) if name == "tversky" else ("tensorflow", "jax.numpy"),
        )
    return found
