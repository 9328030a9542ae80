"""Batches with outputs for every loss, and what Keras calls the same loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from runner.config.schema_task import OPTIONS, TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.task.base import Task
from runner.task.losses import OF_EVERY_ENGINE
from runner.task.registry import make_task

Arrays = dict[str, np.ndarray]
REAL, PADDED = 13, 3  # examples of a batch
CLASSES = 5
WEIGHTS = [1.0, 0.5, 2.0, 3.0, 0.25]
_REGRESSION = {
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "log_cosh": "LogCosh",
    "poisson": "Poisson",
    "cosine_similarity": "CosineSimilarity",
    "huber": "Huber",
}


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
        """Returns the task, made again."""
        return make_task(self.config, self.specs)


def config(
    name: str,
    targets: Sequence[str] = (),
    example_weight: str | None = None,
    inputs: list[str] | None = None,
    **options: Any,
) -> TaskConfig:
    """Returns a task's config with the other options at their defaults."""
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
    """Returns all cases by name."""
    return _classification() | _binary() | _multilabel() | _positions() | _regression() | _shares() | _sequences()


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
    of_chances = _padded(chances)
    # Keras scales its outputs to a sum of 1.
    scaled = _padded(2.0 * chances)
    smooth_chances = config("classification", from_logits=False, label_smoothing=0.1)
    soft_chances = config("classification", from_logits=False)
    weighted_chances = config("classification", from_logits=False, class_weights=WEIGHTS)
    soft = config("classification")
    smooth_soft = config("classification", label_smoothing=0.2)
    logits_of = {"from_logits": True}
    return {
        "classes": case(sparse, label, top_k=3),
        "classes smoothed": case(dense, one_hot, smooth=0.1),
        "classes weighted": case(sparse, label, by_class[label], class_weights=WEIGHTS),
        "classes named weights": case(
            sparse, label, np.where(label == 3, 4.0, 1.0).astype(np.float32), class_weights={"d": 4.0}
        ),
        "examples weighted": case(sparse, label, own, example_weight="own"),
        "both weighted": case(
            dense, one_hot, own * by_class[label], smooth=0.3, example_weight="own", class_weights=WEIGHTS
        ),
        "outputs of a softmax": Case(soft_chances, unweighted, batch, of_chances, sparse, {}, label),
        "outputs of a softmax weighted": Case(
            weighted_chances, unweighted, batch, of_chances, sparse, {}, label, by_class[label]
        ),
        "outputs of a softmax smoothed": Case(
            smooth_chances, unweighted, batch, scaled, dense, {"label_smoothing": 0.1}, one_hot
        ),
        "probabilities of a softmax": Case(soft_chances, soft_specs, soft_batch, scaled, dense, {}, mixed),
        "probabilities": Case(soft, soft_specs, soft_batch, outputs, dense, logits_of, mixed),
        "probabilities smoothed": Case(
            smooth_soft, soft_specs, soft_batch, outputs, dense, logits_of | {"label_smoothing": 0.2}, mixed
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
    words = {"x": specs["x"], "label": ArraySpec((), "int32", (), ("no", "yes"))}
    flags, _ = padded({"x": x, "label": label.astype(bool)}, logits)
    flag_specs = {"x": specs["x"], "label": ArraySpec((), "bool")}
    loss, as_logits = "BinaryCrossentropy", {"from_logits": True}
    unweighted = {name: specs[name] for name in ("x", "label")}
    smoothed = as_logits | {"label_smoothing": 0.2}
    weighted = config("binary", example_weight="own", class_weights=[0.5, 3.0], thresholds=[0.2, 0.9])
    positive = config("binary", positive="no", class_weights={"no": 2.0})
    flipped = np.where(label > 0, 1.0, 2.0).astype(np.float32)
    return {
        "binary": Case(config("binary"), unweighted, batch, outputs, loss, as_logits, target),
        "binary smoothed": Case(
            config("binary", label_smoothing=0.2), unweighted, batch, outputs, loss, smoothed, target
        ),
        "binary weighted": Case(weighted, specs, batch, outputs, loss, as_logits, target, own * by_class),
        "binary words": Case(positive, words, batch, outputs, loss, as_logits, 1.0 - target, flipped),
        "binary flags": Case(config("binary"), flag_specs, flags, outputs, loss, as_logits, target),
        "binary probabilities": Case(
            config("binary", from_logits=False), unweighted, batch, _padded(chances), loss, {}, target
        ),
    }


def _padded(outputs: np.ndarray) -> np.ndarray:
    return padded({}, outputs)[1]


def _positions() -> dict[str, Case]:
    rng = np.random.default_rng(5)
    found: dict[str, Case] = {}
    by_class = np.array(WEIGHTS, np.float32)
    loss, as_logits = "SparseCategoricalCrossentropy", {"from_logits": True}
    for shape in ((6,), (3, 4, 1), (2, 3, 2)):
        x = rng.normal(size=(REAL, 2)).astype(np.float32)
        label = rng.choice([0, 1, 3, 4, 255], (REAL, *shape)).astype(np.uint8)  # none of class 2
        places = shape[:-1] if shape[-1] == 1 else shape
        logits = rng.normal(scale=3.0, size=(REAL, *places, CLASSES)).astype(np.float32)
        logits[0], logits[1, 0] = 80.0, logits[1, 1]
        share = rng.uniform(0.0, 2.0, (REAL, *shape)).astype(np.float32)
        share[label == 255] = 0.0
        own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
        batch, outputs = padded({"x": x, "label": label, "share": share, "own": own}, logits)
        specs = {
            "x": ArraySpec((2,), "float32"),
            "label": ArraySpec(shape, "uint8", (), tuple("abcde")),
            "share": ArraySpec(shape, "float32"),
            "own": ArraySpec((), "float32"),
        }
        flat = label.reshape(REAL, *places).astype(np.int32)
        known = np.where(flat == 255, 0, flat)
        counted = (flat != 255).astype(np.float32)
        label_share = share.reshape(REAL, *places)
        example = own.reshape(REAL, *[1] * len(places))
        unweighted = {name: specs[name] for name in ("x", "label")}
        with_share = {name: specs[name] for name in ("x", "label", "share")}
        with_own = {name: specs[name] for name in ("x", "label", "own")}
        ignore = {"inputs": ["x"], "ignore_index": 255}
        soft = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        soft = (soft / soft.sum(-1, keepdims=True)).astype(np.float32)
        made = {
            "ignored": Case(
                config("positions", **ignore), unweighted, batch, outputs, loss, as_logits, known, counted
            ),
            "smoothed": Case(
                config("positions", **ignore, label_smoothing=0.2),
                unweighted,
                batch,
                outputs,
                "CategoricalCrossentropy",
                as_logits | {"label_smoothing": 0.2},
                np.eye(CLASSES, dtype=np.float32)[known],
                counted,
            ),
            "weighted": Case(
                config("positions", **ignore, label_weight="share", class_weights=WEIGHTS),
                with_share,
                batch,
                outputs,
                loss,
                as_logits,
                known,
                counted * label_share * by_class[known],
            ),
            "of examples": Case(
                config("positions", **ignore, example_weight="own"),
                with_own,
                batch,
                outputs,
                loss,
                as_logits,
                known,
                counted * example,
            ),
            "probabilities": Case(
                config("positions", **ignore, from_logits=False),
                unweighted,
                batch,
                _padded(soft),
                loss,
                {},
                known,
                counted,
            ),
        }
        for name, case in made.items():
            # Keras's mean with weights is over all positions.
            found[f"positions {name} {list(shape)}"] = replace(case, terms=float(counted.size))
    return found


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
        "labels": Case(config("multilabel"), specs, batch, outputs, loss, told, target),
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
            config("multilabel", list(columns), threshold=0.3, thresholds=[0.7], auc_thresholds=20),
            column_specs,
            column_batch,
            outputs,
            loss,
            told,
            target,
        ),
    }


def libraries(loss: str) -> tuple[str, ...]:
    """Returns the libraries that compute a loss."""
    return ("tensorflow", "jax.numpy") if loss in OF_EVERY_ENGINE else ("jax.numpy",)


def _regression() -> dict[str, Case]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    found: dict[str, Case] = {}
    for shape in ((), (3,), (2, 3)):
        y = rng.uniform(0.1, 4.0, (REAL, *shape)).astype(np.float32)
        near = np.abs(y + rng.normal(size=y.shape)).astype(np.float32) + 0.05
        outputs = near if shape else near[:, None]
        batch, whole = padded({"x": x, "y": y, "own": own}, outputs)
        specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec(shape, "float32"), "own": ArraySpec((), "float32")}
        for name, loss in _REGRESSION.items():
            if name == "cosine_similarity" and not shape:
                continue  # of numbers it is a sign
            options = {"delta": 0.7} if name == "huber" else {}
            made = config("regression", loss=name, example_weight="own", **options)
            target = y if shape else y[:, None]
            weights = own if len(shape) < 2 else None  # Keras spreads an example's weight over its vectors
            if weights is None:
                made = config("regression", loss=name, **options)
            kept = specs if weights is not None else {key: specs[key] for key in ("x", "y")}
            found[f"{name} {list(shape)}"] = Case(
                made, kept, batch, whole, loss, options, target, weights, libraries=libraries(name)
            )
    return found


def _shares() -> dict[str, Case]:
    """Losses of probabilities, of targets of several shapes."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    found: dict[str, Case] = {}
    for shape in ((4,), (2, 3)):
        logits = rng.normal(size=(REAL, *shape)).astype(np.float32)
        # Near 0 and 1 the two versions of Keras differ: one clips a probability, the other also adds its epsilon.
        chances = (0.1 + 0.8 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
        flags = (rng.random((REAL, *shape)) < 0.4).astype(np.float32)
        shares = rng.dirichlet(np.ones(shape[-1]), (REAL, *shape[:-1])).astype(np.float32)
        classes = np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], (REAL, *shape[:-1]))]
        from_logits = {"from_logits": True}
        made: list[tuple[str, str, np.ndarray, np.ndarray, dict[str, bool]]] = [
            ("binary_crossentropy", "BinaryCrossentropy", flags, chances, {}),
            ("binary_crossentropy", "BinaryCrossentropy", flags, 9.0 * logits, from_logits),
            ("binary_focal_crossentropy", "BinaryFocalCrossentropy", flags, chances, {}),
            ("binary_focal_crossentropy", "BinaryFocalCrossentropy", flags, logits, from_logits),
            ("categorical_crossentropy", "CategoricalCrossentropy", shares, chances, {}),
            ("categorical_crossentropy", "CategoricalCrossentropy", shares, 9.0 * logits, from_logits),
            ("categorical_focal_crossentropy", "CategoricalFocalCrossentropy", shares, chances, {}),
            ("categorical_focal_crossentropy", "CategoricalFocalCrossentropy", shares, logits, from_logits),
            ("kl_divergence", "KLDivergence", shares, chances, {}),
            ("hinge", "Hinge", flags, logits, {}),
            ("squared_hinge", "SquaredHinge", flags, logits, {}),
            ("categorical_hinge", "CategoricalHinge", classes, logits, {}),
        ]
        for name, loss, target, outputs, options in made:
            batch, whole = padded({"x": x, "y": target}, outputs)
            specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec(shape, "float32")}
            kind = "logits" if options else "outputs"
            found[f"{name} of {kind} {list(shape)}"] = Case(
                config("regression", loss=name, **options),
                specs,
                batch,
                whole,
                loss,
                options,
                target,
                libraries=libraries(name),
            )
        # Keras 3 alone has these. It takes class numbers for the first; the second is summed over the example here.
        numbers = classes.argmax(-1).astype(np.int32)
        over = tuple(range(1, len(shape) + 1))
        for name, loss, target, of_keras, options in (
            ("categorical_generalized_cross_entropy", "CategoricalGeneralizedCrossEntropy", classes, numbers, {}),
            ("tversky", "Tversky", flags, flags, {"axis": over}),
            ("dice", "Dice", flags, flags, {"axis": over}),
        ):
            batch, whole = padded({"x": x, "y": target}, chances)
            specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec(shape, "float32")}
            found[f"{name} {list(shape)}"] = Case(
                config("regression", loss=name), specs, batch, whole, loss, options, of_keras, libraries=("jax.numpy",)
            )
    return found


def _sequences() -> dict[str, Case]:
    rng = np.random.default_rng(7)
    source = rng.integers(1, 9, (REAL, 4)).astype(np.int32)
    target = rng.integers(1, CLASSES, (REAL, 6)).astype(np.int32)
    target[::3, 4:] = 0
    logits = rng.normal(scale=3.0, size=(REAL, 6, CLASSES)).astype(np.float32)
    batch, outputs = padded({"source": source, "target": target}, logits)
    specs = {"source": ArraySpec((4,), "int32"), "target": ArraySpec((6,), "int32")}
    # Keras is given the shifted target and all outputs; the last one has no label.
    following = np.concatenate([target[:, 1:], np.zeros((REAL, 1), np.int32)], 1)
    counted = (following != 0).astype(np.float32)
    every = np.ones_like(counted)
    every[:, -1] = 0.0
    as_logits = {"from_logits": True}
    one_hot = np.eye(CLASSES, dtype=np.float32)[following]
    sparse, dense = "SparseCategoricalCrossentropy", "CategoricalCrossentropy"
    kind = "sequence_to_sequence"
    made = {
        "sequences": Case(
            config(kind, vocabulary=CLASSES), specs, batch, outputs, sparse, as_logits, following, counted
        ),
        "sequences without padding": Case(
            config(kind, vocabulary=CLASSES, padding=None), specs, batch, outputs, sparse, as_logits, following, every
        ),
        "sequences smoothed": Case(
            config(kind, vocabulary=CLASSES, label_smoothing=0.2),
            specs,
            batch,
            outputs,
            dense,
            as_logits | {"label_smoothing": 0.2},
            one_hot,
            counted,
        ),
    }
    # Keras's mean with weights is over all positions.
    return {name: replace(case, terms=float(counted.size)) for name, case in made.items()}
