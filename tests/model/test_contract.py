"""What Keras's `fit` does around a step, a run does too, or refuses by name: both engines, against the stock `fit`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine import cases
from tests.model.contract_models import CONSTRAINTS
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Arrays = dict[str, np.ndarray]
ENGINES = ("jax", "keras_dtensor")
# Float32 sums of the same terms in another order stay within these over 6 steps, as in tests/engine.
RELATIVE, ABSOLUTE = 1e-5, 1e-6

EVERY_OPTIMIZER = [
    {"name": f"max_norm-{name}", "target": "constrained", "optimizer": name} for name in cases.OPTIMIZERS
]
EVERY_CONSTRAINT = [{"name": kind, "target": "constrained", "options": {"kind": kind}} for kind in CONSTRAINTS]
OTHERS: list[dict[str, Any]] = [
    {"name": "padded", "target": "constrained", "padded": True},
    {"name": "subclassed", "target": "subclassed"},
    {"name": "adds_mean", "target": "adds_loss", "options": {"what": "mean"}},
    {"name": "adds_sum", "target": "adds_loss", "options": {"what": "sum"}},
    {"name": "adds_in_training", "target": "adds_loss", "options": {"what": "training"}},
    {"name": "regularized", "target": "regularized"},
    {"name": "keeps_mean", "target": "keeps", "options": {"what": "mean"}},
    {"name": "counts_steps", "target": "keeps", "options": {"what": "steps"}},
    {"name": "counts_steps_padded", "target": "keeps", "options": {"what": "steps"}, "padded": True},
    {"name": "counts_rows", "target": "keeps", "options": {"what": "rows"}},
    {"name": "frozen", "target": "frozen"},
    {"name": "same_names", "target": "same_names"},
]
OF_KERAS_3: list[dict[str, Any]] = [
    {"name": "noisy", "target": "noisy"},
    {"name": "adds_rows", "target": "adds_loss", "options": {"what": "rows"}},
]
RUNS = [*EVERY_CONSTRAINT, *EVERY_OPTIMIZER, *OTHERS]
MESHES: dict[str, dict[str, Any]] = {
    "batch8": {"axes": {"batch": 8}, "layout": "replicated"},
    "batch4_model2": {"axes": {"batch": 4, "model": 2}, "layout": "megatron"},
    "batch8-fsdp": {"axes": {"batch": 8}, "layout": "fsdp"},
}
SEPARATE = MESHES["batch8"] | {"combine": False}  # all-reduces are not merged


def runs(engine: str, mesh: str = "") -> list[dict[str, Any]]:
    if mesh == "batch8-fsdp":
        return EVERY_CONSTRAINT
    return [*RUNS, *(OF_KERAS_3 if engine == "jax" else [])]


def work(out: Path, engine: str, **request: Any) -> None:
    """Runs the worker."""
    asked = json.dumps({"engine": engine} | request)
    command = [sys.executable, "-m", "tests.model.contract_worker", str(out), asked]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    library = "jax" if engine == "jax" else "tensorflow"
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def fit(folder: Path, engine: str) -> Arrays:
    """What the library's own `fit` trains."""
    out = folder / f"{engine}-fit.npz"
    work(out, engine, axes=None, runs=runs(engine))
    return dict(np.load(out))


@pytest.fixture(scope="module", params=MESHES)
def mesh(request: pytest.FixtureRequest, folder: Path, engine: str) -> Arrays:
    out = folder / f"{engine}-{request.param}.npz"
    work(out, engine, runs=runs(engine, request.param), **MESHES[request.param])
    return dict(np.load(out))


def wrong(fit: Arrays, got: Arrays) -> dict[str, float]:
    """Returns the largest difference of each variable that is off; all of a run's variables must be there."""
    names = {key.split(":")[0] for key in got}
    expected = {key: value for key, value in fit.items() if key.split(":")[0] in names}
    assert expected
    assert set(expected) <= set(got)
    return {
        key: float(np.abs(got[key].astype(np.float64) - value).max())
        for key, value in expected.items()
        if not np.all(np.abs(got[key] - value) <= np.maximum(ABSOLUTE, RELATIVE * np.abs(value)))
    }


@pytest.mark.nightly
def test_a_run_trains_what_stock_fit_trains(fit: Arrays, mesh: Arrays) -> None:
    """Constraints under every optimizer; added losses; kept and frozen variables."""
    assert wrong(fit, mesh) == {}


@pytest.mark.nightly
def test_a_constraint_is_applied_where_all_reduces_are_left_separate(fit: Arrays, folder: Path, engine: str) -> None:
    if engine == "jax":
        pytest.skip("the option is DTensor's")
    out = folder / "separate.npz"
    chosen = [
        run
        for run in [*EVERY_CONSTRAINT, *EVERY_OPTIMIZER]
        if run["name"] in ("max_norm-adam", "max_norm-sgd", "centerd")
    ]
    work(out, engine, runs=chosen, **SEPARATE)
    got = dict(np.load(out))
    assert wrong(fit, got) == {}


@pytest.mark.nightly
def test_a_constraint_holds_after_training(mesh: Arrays) -> None:
    assert np.abs(mesh["centerd:d1/kernel"].mean()) < 1e-8, "the whole weight's mean, not a shard's"
    bounded = [key for key in mesh if key.startswith("max_norm") and key.endswith(":d1/kernel")]
    assert bounded
    for key in bounded:
        assert np.sqrt(np.square(mesh[key]).sum(0)).max() <= 0.1 + 1e-6, key  # 1.43 before constraints were honored
        assert mesh[key.replace("kernel", "bias")].min() >= 0.0


@pytest.mark.parametrize("engine", nightly_except(["jax"], ENGINES))
def test_constraints_are_applied_once_per_step_of_several_microbatches(folder: Path, engine: str) -> None:
    """Two micro-batches of a step train what the whole batch does; SGD, whose step is linear in the gradient."""
    whole = {"name": "whole", "target": "constrained", "optimizer": "sgd"}
    out = folder / f"{engine}-micro.npz"
    work(out, engine, runs=[whole, whole | {"name": "parts", "accumulate": 2}], **MESHES["batch8"])
    got = np.load(out)
    for path in ("d1/kernel", "d1/bias", "d2/kernel", "d2/bias"):
        np.testing.assert_allclose(got[f"parts:{path}"], got[f"whole:{path}"], RELATIVE, ABSOLUTE)


PAD = {"remainder": "pad"}
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("keeps", PAD, ["dataset.remainder=pad", "kept", "training call", "remainder=drop"]),
    ("keeps", PAD | {"options": {"what": "rows"}}, ["dataset.remainder=pad", "kept"]),
    ("keeps", PAD | {"options": {"what": "steps"}, "accumulate": 2}, ["kept", "2 microbatches", "padding only"]),
    ("keeps", PAD | {"options": {"what": "mixed"}}, ["the other examples of a batch"]),
    ("keeps", {"options": {"what": "evaluation"}}, ["kept", "training=False"]),
    ("adds_loss", PAD, ["dataset.remainder=pad", "a loss that a layer adds"]),
    ("regularized", PAD, ["dataset.remainder=pad", "activity_regularizer"]),
    *(("own_step", {"options": {"method": name}}, [name, "task"]) for name in ("train_step", "test_step")),
    *(("own_step", {"options": {"method": name}}, [name, "task"]) for name in ("compute_loss", "compute_metrics")),
    ("compiled", {}, ["SGD", "mse", "remove model.compile(...)"]),
    ("half", {}, ["layer half", "float16", "engine.precision=bfloat16"]),
    ("narrow", {}, ["narrow", "kernel", "bfloat16"]),
    ("measured", {}, ["layer measuring", "metric seen"]),
    ("stateful", {}, ["layer rnn", "stateful=False"]),
    ("masked", {}, ["mask of the steps", "compute_mask returns None", "task.label_weight", "GlobalAveragePooling1D"]),
    (
        "adversarial",
        {"options": {"kind": "compile"}},
        ["Adversarial trains by a train_step", "task=step"],
    ),
    (
        "adversarial",
        {"options": {"kind": "held"}},
        ["task=step with engine=jax", "train one network at a time"],
    ),
    ("adversarial", {"options": {"kind": "no_call"}}, ["task=step with engine=jax"]),
    (
        "adversarial",
        {"options": {"kind": "pair"}},
        ["returned 2 models", "several optimizers", "return one keras.Model"],
    ),
    ("float8", {}, ["overwritten by its gradient", "quantize"]),
]
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    ("constrained", PAD),
    ("subclassed", PAD),
    ("keeps", PAD | {"options": {"what": "steps"}}),
    ("keeps", {"accumulate": 2}),
    ("frozen", PAD),
    ("same_names", {}),
]


@pytest.fixture(scope="module")
def said(folder: Path, engine: str) -> list[str]:
    """What is said of each model of `REFUSED`, then of `ALLOWED`; empty where it is taken."""
    asked = [{"target": target, **more} for target, more, *_ in (*REFUSED, *ALLOWED)]
    if engine == "keras_dtensor":
        asked = [each for each in asked if each["target"] != "float8"]
    out = folder / f"{engine}-refused.json"
    work(out, engine, refused=asked)
    found: list[str] = json.loads(out.read_text())
    return found


def test_a_model_that_needs_what_only_fit_does_is_rejected_by_name(said: list[str], engine: str) -> None:
    expected = [case for case in REFUSED if engine == "jax" or case[0] != "float8"]
    for (target, more, parts), line in zip(expected, said, strict=False):
        assert ": " in line, (target, more)
        assert "\n" not in line
        assert [part for part in parts if part not in line] == [], line


def test_a_model_that_a_run_honors_is_accepted(said: list[str]) -> None:
    assert said[-len(ALLOWED) :] == [""] * len(ALLOWED)
