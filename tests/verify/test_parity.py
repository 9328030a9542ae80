"""Two engines on one mesh: equal where both are sound, and a wrong one is seen."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.checks import run as checks
from runner.config.schema import AgainstConfig, RunConfig
from runner.errors import ConfigError
from runner.verify.check import compare_sides
from runner.verify.children import SideResult
from runner.verify.compare import compare
from runner.verify.parity import Parity, parity, second_config
from runner.verify.report import Verification
from runner.verify.request import write_arrays
from runner.verify.rounding import noise
from runner.verify.spread import spread
from tests.configs import with_keys
from tests.engine import cases
from tests.verify.test_compare import run
from tests.verify.test_verify import WIDE, broken, command, failures, result

SMALL = ["dataset.batch_size=32", "optimizer.learning_rate=0.001", "verify.steps=3", "tracking=none"]
SIDES = ("engine a", "engine b")


def config(engine: str, other: str | None) -> RunConfig:
    made = cases.config({"batch": 2}, hidden=[16], dropout=0.5)
    made = with_keys(made, {"engine.name": engine})
    return replace(made, against=AgainstConfig(other))


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("nope", r"against.engine=nope: must be one of keras_dtensor, core_dtensor, jax"),
        ("jax", r"against.engine=jax: must differ from engine=jax; set against.engine=keras_dtensor"),
    ],
)
def test_an_engine_that_is_unknown_or_the_same_is_invalid(other: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        checks.check(config("jax", other))


def test_an_engine_that_is_not_installed_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("jax", "keras") else there(name))
    with pytest.raises(ConfigError, match=r"against.engine=jax: needs jax and keras"):
        checks.check(config("keras_dtensor", "jax"))


def test_the_second_engine_runs_the_same_config() -> None:
    asked = config("keras_dtensor", "jax")
    assert parity(asked) == Parity("keras_dtensor", "jax")
    assert second_config(asked) == replace(config("jax", None), against=AgainstConfig(None))
    assert parity(config("jax", None)) is None


def test_the_two_are_compared_with_each_other_by_the_single_devices_tolerance() -> None:
    perturbed_runs = [run(seed, 1e-5) for seed in (1, 2, 3)]
    first, other = run(), run(4, 1e-5)
    first["initial/d1/kernel"] = np.zeros_like(first["initial/d1/kernel"])  # drawn in another way
    for both in (first, other):
        both["gradient/d1/kernel"] += 1.0  # off from the single device together
    found = compare(run(), spread(run(), perturbed_runs), other, 0.0, first, SIDES)
    assert all(check.passed for check in found)
    assert {check.kind for check in found} == {"loss", "gradient", "parameter", "statistic", "slot"}
    other["gradient/d1/kernel"] += 1e-3
    found = compare(run(), spread(run(), perturbed_runs), other, 0.0, first, SIDES)
    assert [check.name for check in found if not check.passed] == ["gradient/d1/kernel"]
    report = Verification(tuple(found), 3, "batch=8", 128, noise(128), Parity("a", "b"))
    assert "mismatch: b differs from a on batch=8, first in gradient/d1/kernel, step 1" in report.line()
    assert report.content({})["engines"] == ["a", "b"]


def test_engines_of_other_variables_are_named() -> None:
    other = run()
    other["final/d1/bias"] = other["final/bn/mean"]
    with pytest.raises(ValueError, match="engine a and engine b do not have the same arrays: final/d1/bias"):
        compare(run(), spread(run(), [run()]), other, 0.0, run(), SIDES)


def test_two_engines_that_agree_in_what_is_wrong_differ_from_one_device(tmp_path: Path) -> None:
    wrong = run()
    wrong["final/d1/kernel"] += 1.0
    runs = {"reference": run(), "mesh": wrong, "against": wrong}
    for side, arrays in (runs | {"spread": spread(run(), [run(seed, 1e-5) for seed in (1, 2, 3)])}).items():
        write_arrays(tmp_path / f"{side}.npz", arrays)
    said: dict[str, SideResult] = {side: {"kind": "done", "terms": 128, "noise": noise(128)} for side in runs}
    found = compare_sides(config("keras_dtensor", "jax"), tmp_path, said)
    assert (found.verdict, found.first.name) == ("mismatch", "d1/kernel")
    assert found.line().startswith("mismatch: the mesh batch=2 differs from one device, first in d1/kernel")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["engine=keras_dtensor", "against.engine=jax", "mesh=batch4_model2", "layout=megatron"],
        ["engine=jax", "against.engine=keras_dtensor", "mesh=batch2"],
        ["engine=keras_dtensor", "against.engine=jax", "mesh=batch2", "model=convnet"],
    ],
    ids=["mlp", "jax-first", "convnet"],
)
def test_two_sound_engines_agree(tmp_path: Path, overrides: list[str]) -> None:
    done = command(tmp_path, *SMALL, *overrides)
    content = result(tmp_path)
    first, other = content["engines"]
    assert f"verified: 3 steps of {other} on {content['mesh']} match those of {first}" in done.stdout
    assert "initial" not in {check["kind"] for check in content["checks"]}
    assert max(float(check["ratio"]) for check in content["checks"]) < 0.5, "far from the tolerances"


@pytest.mark.nightly
@pytest.mark.slow
def test_an_engine_that_scales_a_gradient_is_seen_by_the_other(tmp_path: Path) -> None:
    done = broken(tmp_path, "scaled_gradient", "against.engine=jax", "tracking=none", "verify.steps=3")
    found = failures(tmp_path)
    assert "mismatch: jax differs from keras_dtensor on batch=8, first in gradient/d2/kernel" in done.stderr
    assert [name for name in found if name.startswith("gradient/")] == ["gradient/d2/kernel"]
    assert found["gradient/d2/kernel"] > WIDE
