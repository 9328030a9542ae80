"""Batches with outputs for the losses that a config chooses with options, and what Keras calls the same loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from runner.data.base import ArraySpec
from tests.task.cases import CLASSES, REAL, WEIGHTS, Case, config, padded


def make() -> dict[str, Case]:
    """Keras's losses with options, instead of the cross-entropy of a task."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(REAL, 2)).astype(np.float32)
    own = rng.uniform(0.1, 2.0, REAL).astype(np.float32)
    label = rng.integers(0, CLASSES, REAL).astype(np.int32)
    logits = rng.normal(size=(REAL, CLASSES)).astype(np.float32)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    flags = (rng.random((REAL, CLASSES)) < 0.4).astype(np.float32)
    chances = (0.1 + 0.8 / (1.0 + np.exp(-logits))).astype(np.float32)
    grid = rng.choice([0, 1, 4, 255], (REAL, 2, 3)).astype(np.int32)
    known = np.where(grid == 255, 0, grid)
    grid_logits = rng.normal(size=(REAL, 2, 3, CLASSES)).astype(np.float32)
    grid_shares = np.exp(grid_logits) / np.exp(grid_logits).sum(-1, keepdims=True)
    one_hot, grid_one_hot = np.eye(CLASSES, dtype=np.float32)[label], np.eye(CLASSES, dtype=np.float32)[known]
    by_class = np.array(WEIGHTS, np.float32)
    as_logits = {"from_logits": True}
    focal = {"gamma": 3.0, "alpha": 0.4}
    balanced = {"gamma": 1.5, "alpha": 0.3, "apply_class_balancing": True}
    smooth = {"label_smoothing": 0.2}

    def case(
        task: str,
        loss: str,
        of_keras: str,
        target: np.ndarray,
        outputs: np.ndarray,
        given: np.ndarray,
        told: Mapping[str, Any],
        weights: np.ndarray | None = None,
        libraries: tuple[str, ...] = ("jax.numpy",),
        **options: Any,
    ) -> Case:
        names = tuple("abcde") if task == "classification" else ()
        specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec(target.shape[1:], str(target.dtype), (), names)}
        arrays = {"x": x, "y": target}
        if options.get("example_weight"):
            arrays["own"] = own
            specs["own"] = ArraySpec((), "float32")
        batch, whole = padded(arrays, outputs)
        made = config(task, loss=loss, **options)
        return Case(made, specs, batch, whole, of_keras, told, given, weights, libraries=libraries)

    binary = (label > 2).astype(np.int32)
    binary_flags = binary[:, None].astype(np.float32)
    counted = (grid != 255).astype(np.float32)
    ignore = {"classes": CLASSES, "ignore_index": 255}
    focal_name, binary_focal_name = "categorical_focal_crossentropy", "binary_focal_crossentropy"
    of_positions = case(
        *("positions", focal_name, "CategoricalFocalCrossentropy", grid, grid_logits, grid_one_hot),
        {**focal, **as_logits, **smooth},
        counted * by_class[known],
        loss_options=focal,
        class_weights=WEIGHTS,
        **ignore,
        **smooth,
    )
    return {
        "classes focal": case(
            *("classification", focal_name, "CategoricalFocalCrossentropy", label, logits, one_hot),
            {**focal, **as_logits, **smooth},
            own * by_class[label],
            loss_options=focal,
            example_weight="own",
            class_weights=WEIGHTS,
            **smooth,
        ),
        "classes squared": case(
            *("classification", "mean_squared_error", "MeanSquaredError", label, shares, one_hot, {}),
            from_logits=False,
        ),
        "classes generalized": case(
            *("classification", "categorical_generalized_cross_entropy", "CategoricalGeneralizedCrossEntropy"),
            *(label, shares, label, {"q": 0.7}),
            from_logits=False,
            loss_options={"q": 0.7},
        ),
        "binary focal": case(
            *("binary", binary_focal_name, "BinaryFocalCrossentropy", binary, logits[:, :1], binary_flags),
            {**balanced, **as_logits},
            own,
            loss_options=balanced,
            example_weight="own",
        ),
        "binary hinge": case("binary", "hinge", "Hinge", binary, logits[:, :1], binary_flags, {}),
        "labels focal": case(
            *("multilabel", binary_focal_name, "BinaryFocalCrossentropy", flags, logits, flags),
            {**balanced, **as_logits, **smooth},
            loss_options=balanced,
            **smooth,
        ),
        "labels tversky": case(
            *("multilabel", "tversky", "Tversky", flags, chances, flags, {"alpha": 0.3, "beta": 0.9, "axis": 1}),
            from_logits=False,
            loss_options={"alpha": 0.3, "beta": 0.9},
        ),
        # Keras's mean with weights is over all positions.
        "positions focal": replace(of_positions, terms=float(grid.size)),
        "positions dice": replace(
            case(
                *("positions", "dice", "Dice", known, grid_shares, grid_one_hot, {"axis": (1, 2, 3)}),
                from_logits=False,
                classes=CLASSES,
            ),
            # A step's mean is over the positions, of which each example has six.
            terms=float(grid.size),
        ),
        "numbers focal": case(
            *("regression", binary_focal_name, "BinaryFocalCrossentropy", flags, chances, flags),
            {**balanced, **smooth},
            loss_options={**balanced, **smooth},
        ),
        "numbers smoothed": case(
            *("regression", "categorical_crossentropy", "CategoricalCrossentropy", one_hot, logits, one_hot),
            {**as_logits, **smooth},
            from_logits=True,
            loss_options=smooth,
        ),
    }
