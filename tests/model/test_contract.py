"""What Keras's `fit` does around a step, a run does too, or refuses by name, on both engines.

That it does the same is in `tests/parity`.
"""

import json
from typing import Any

import pytest

from tests import forks
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

# Model, what is asked of it, and parts of the line that refuses it.
Rows = list[tuple[str, dict[str, Any], list[str]]]

PAD = {"remainder": "pad"}
REFUSED: Rows = [
    ("keeps", PAD, ["dataset.remainder=pad", "training call", "remainder=drop"]),
    ("keeps", PAD | {"options": {"what": "mixed"}}, ["the other examples of a batch"]),
    ("keeps", PAD | {"options": {"what": "rows"}}, ["dataset.remainder=pad", "training call"]),
    ("adds_loss", PAD, ["dataset.remainder=pad", "a loss that a layer adds"]),
    ("regularized", PAD, ["dataset.remainder=pad", "activity_regularizer"]),
    *(("own_step", {"options": {"method": name}}, [name, "task"]) for name in ("train_step", "test_step")),
    *(("own_step", {"options": {"method": name}}, [name, "task"]) for name in ("compute_loss", "compute_metrics")),
    ("compiled", {}, ["SGD", "task=compiled"]),
    ("half", {}, ["layer half", "float16", "engine.precision=bfloat16"]),
    ("narrow", {}, ["narrow", "kernel", "bfloat16"]),
    ("measured", {}, ["layer measuring", "metric seen"]),
    ("stateful", {}, ["layer rnn", "stateful=False"]),
    ("masked", {}, ["mask of the steps", "compute_mask returns None", "task.label_weight"]),
    ("pair", {}, ["returned 2 models", "return one keras.Model"]),
]
IN_TENSORFLOW = ("HashedCrossing", "Hashing", "IntegerLookup", "StringLookup", "TextVectorization")
OF_JAX: Rows = [
    ("keeps", PAD | {"options": {"what": "steps"}, "accumulate": 2}, ["kept", "in each microbatch"]),
    *(("in_tensorflow", {"options": {"name": name}}, [name, "runs in TensorFlow only"]) for name in IN_TENSORFLOW),
    ("float8", {}, ["overwritten by its gradient", "quantize"]),
    ("draws", {}, ["by the same count each time; draw with seed=generator"]),
]
OF_DTENSOR: Rows = [
    ("without_rule", {}, ["(GRU)", "; set engine=jax"]),
    ("reads_closure", {"evaluated": True}, ["not on the mesh; set engine=jax", "as an attribute of the layer"]),
    ("constrained", {}, ["variable d3/kernel", "; set engine=jax"]),
]
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    ("subclassed", PAD),
    ("keeps", PAD | {"options": {"what": "steps"}}),
    ("keeps", {"accumulate": 2}),
    ("keeps", {"options": {"what": "evaluation"}, "evaluated": True}),
    ("frozen", PAD),
    ("same_names", {}),
    ("every_activation", {}),
]


@pytest.mark.parametrize("engine", nightly_except(["jax"], ["jax", "keras_dtensor"]))
def test_a_model_that_needs_what_only_fit_does_is_rejected_by_name_and_others_are_not(engine: str) -> None:
    refused = [*REFUSED, *(OF_JAX if engine == "jax" else OF_DTENSOR)]
    asked = [{"target": target, **more} for target, more, *_ in (*refused, *ALLOWED)]
    library = forks.OF_ENGINE[engine]
    said = forks.answer("-m", "tests.model.contract_worker", engine, json.dumps(asked), library=library)
    for (target, more, parts), line in zip(refused, said, strict=False):
        assert ": " in line, (target, more)
        assert "\n" not in line
        assert [part for part in parts if part not in line] == [], line
    assert said[-len(ALLOWED) :] == [""] * len(ALLOWED)
