"""What of a step differs first, from the arrays of two replays."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from runner.bisect import cause
from runner.bisect.children import Replay
from runner.replay.recompute import digest, is_exact, sketch
from runner.verify.request import write_arrays

Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    draw = np.random.default_rng(0)
    return {
        "batch/index": np.array([7, 3, 9, 0]),
        "batch/image": draw.normal(size=(4, 5)).astype(np.float32),
        "batch/label": np.array([1, 0, 2, 0]),
        "batch/weight": np.array([1, 1, 1, 0], np.float32),
        "gradient/d1/kernel": draw.normal(size=(5, 3)).astype(np.float32),
        "gradient/d2/kernel": draw.normal(size=(3, 2)).astype(np.float32),
        "layer/d1": draw.normal(size=(4, 3)).astype(np.float32),
        "layer/d2": draw.normal(size=(4, 2)).astype(np.float32),
        "variable/d1/kernel": draw.normal(size=(5, 3)).astype(np.float32),
        "variable/d2/kernel": draw.normal(size=(3, 2)).astype(np.float32),
        "variable/optimizer/v/d1/kernel": draw.normal(size=(5, 3)).astype(np.float32),
    }


def replayed(folder: Path, name: str, content: Arrays, step: int = 5) -> Replay:
    """A replay whose state after the step has the arrays' variables."""
    place = folder / name
    place.mkdir()
    write_arrays(place / "arrays.npz", content)
    state = {path.removeprefix("variable/"): array for path, array in content.items() if path.startswith("variable/")}
    not_finite = [path for path, array in state.items() if not np.isfinite(array).all()]
    record = {
        "step": step,
        "digests": {path: digest(array) for path, array in state.items()},
        "sketches": {path: sketch(array) for path, array in state.items() if not is_exact(array)},
        "not_finite": not_finite,
    }
    text = json.dumps({"states": [record], "metrics": {str(step): {"loss": 0.5}}})
    return Replay(json.loads(text), place)


ALL = ("variable/optimizer/v/d1/kernel", "variable/d1/kernel", "variable/d2/kernel")
GRADIENTS = ("gradient/d1/kernel", "gradient/d2/kernel")


@pytest.mark.parametrize(
    ("changed", "kind", "layer", "variable"),
    [
        (("batch/label", *GRADIENTS, *ALL), "batch", "", "d1/kernel"),
        (("layer/d2", *GRADIENTS, *ALL), "layer", "d2", "d2/kernel"),
        ((*GRADIENTS, *ALL), "loss", "d1", "d1/kernel"),
        (("variable/optimizer/v/d1/kernel",), "update", "d1", "optimizer/v/d1/kernel"),
        (("variable/optimizer/v/d1/kernel", "variable/d2/kernel"), "update", "d2", "d2/kernel"),
    ],
)
def test_the_first_part_of_the_step_that_differs_is_the_cause(
    tmp_path: Path, changed: tuple[str, ...], kind: str, layer: str, variable: str
) -> None:
    other = arrays()
    for name in changed:
        other[name] = other[name].copy()
        other[name][1] += 1
    result = cause.of_difference(5, 0, replayed(tmp_path, "a", arrays()), replayed(tmp_path, "b", other), 0.0)
    assert (result.kind, result.layer, result.variable) == (kind, layer, variable)
    # The padding is no example.
    assert list(result.examples) == [7, 3, 9]
    assert list(result.rows) == ([3] if kind == "batch" else [])
    assert "the runs part in step 5" in next(iter(result.lines()))


def without(content: Arrays, *prefixes: str) -> Arrays:
    return {name: array for name, array in content.items() if not name.startswith(prefixes)}


def test_what_a_custom_step_computes_is_not_known(tmp_path: Path) -> None:
    own = without(arrays(), "layer/", "gradient/")
    other = {**own, "variable/d2/kernel": own["variable/d2/kernel"] + 1}
    one, two = replayed(tmp_path, "a", own), replayed(tmp_path, "b", other)
    result = cause.of_difference(5, 0, one, two, 0.0)
    assert (result.kind, result.variable) == ("unknown", "d2/kernel")
    line = next(iter(result.lines()))
    assert line == "the runs part in step 5: the batches are equal, and what the step computes of them is not known"
    # A batch is known.
    other["batch/label"] = own["batch/label"] + 1
    assert cause.of_difference(5, 0, one, replayed(tmp_path, "c", other), 0.0).kind == "batch"


def test_a_nan_loss_without_layers_is_of_an_unknown_part(tmp_path: Path) -> None:
    content = without(arrays(), "layer/")
    content["gradient/d1/kernel"][1] = np.nan
    content["variable/d1/kernel"][1] = np.nan
    side = replayed(tmp_path, "a", content)
    assert cause.of_nan(5, side).kind == "gradient"
    side.content["metrics"]["5"]["loss"] = float("nan")
    assert cause.of_nan(5, side).kind == "unknown"


def test_differences_below_the_tolerance_do_not_count(tmp_path: Path) -> None:
    other = arrays()
    for name in (*GRADIENTS, "layer/d1", "layer/d2", *ALL):
        other[name] = other[name] * np.float32(1 + 1e-6)
    other["variable/d2/kernel"] = other["variable/d2/kernel"] * np.float32(1.01)
    one, two = replayed(tmp_path, "a", arrays()), replayed(tmp_path, "b", other)
    assert cause.differing(one.states[5], two.states[5], 1e-3) == ["d2/kernel"]
    result = cause.of_difference(5, 0, one, two, 1e-3)
    assert (result.kind, result.variable) == ("update", "d2/kernel")
    assert cause.of_difference(5, 0, one, two, 0.0).kind == "layer"


def test_integers_are_compared_exactly_whatever_the_tolerance_is(tmp_path: Path) -> None:
    base = arrays()
    base["batch/index"] = base["batch/index"] + 100_000
    base["variable/d3/count"] = np.arange(100_000, 100_004)
    other = {**base, "batch/index": base["batch/index"] + 1, "variable/d3/count": base["variable/d3/count"] + 1}
    one, two = replayed(tmp_path, "a", base), replayed(tmp_path, "b", other)
    assert cause.differing(one.states[5], two.states[5], 1e-3) == ["d3/count"]
    result = cause.of_difference(5, 0, one, two, 1e-3)
    assert (result.kind, result.array) == ("batch", "index")


def test_a_sketch_of_a_large_array_is_of_all_its_pieces() -> None:
    # Two pieces and a rest, whose signs must be fixed.
    values = np.random.default_rng(0).normal(size=(2 << 20) + 5).astype(np.float32)
    norm, signed_sum = sketch(values)
    assert norm == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-12)
    assert sketch(values.copy()) == (norm, signed_sum)
    # The variance of the signed sum is the squared norm.
    assert abs(signed_sum) < 6 * norm
    changed = values.copy()
    changed[-1] += 1
    assert abs(sketch(changed)[1] - signed_sum) == pytest.approx(1.0, rel=1e-6)


def test_a_sketch_draws_less_memory_than_the_array() -> None:
    values = np.zeros(16 << 20, np.float32)
    tracemalloc.start()
    sketch(values)
    digest(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < values.nbytes


def test_runs_that_begin_with_different_values_part_before_the_first_step(tmp_path: Path) -> None:
    other = arrays()
    other["variable/d2/kernel"] = other["variable/d2/kernel"] * np.float32(2)
    one, two = replayed(tmp_path, "a", arrays(), step=0), replayed(tmp_path, "b", other, step=0)
    result = cause.of_difference(0, 0, one, two, 0.0)
    assert (result.kind, result.layer, result.variable) == ("start", "d2", "d2/kernel")
    assert "before the first step" in next(iter(result.lines()))


@pytest.mark.parametrize(
    ("name", "kind", "layer", "rows"),
    [
        ("batch/image", "batch", "", [3]),
        ("layer/d1", "layer", "d1", []),
        ("gradient/d1/kernel", "gradient", "d1", []),
        ("variable/d2/kernel", "update", "d2", []),
    ],
)
def test_the_first_nan_of_a_step(tmp_path: Path, name: str, kind: str, layer: str, rows: list[int]) -> None:
    content = arrays()
    content[name][1] = np.nan
    if kind != "update":
        content["variable/d1/kernel"][0] = np.nan
    result = cause.of_nan(5, replayed(tmp_path, "a", content))
    assert (result.kind, result.layer, list(result.rows)) == (kind, layer, rows)
    assert "the first NaN or Inf is in step 5" in next(iter(result.lines()))
