"""The real command verifies schedules, parameter groups, logged norms and Keras's classes on a mesh of two axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.optim.keras_runs import ELEMENTWISE, MESHES, RATES, RUNS, named
from tests.verify.test_verify import command, result

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

_GROUPS = "optimizer.groups=[{match:biases_and_norms,decay:false},{match:'d1/.*',rate:0.1,freeze_steps:1}]"
_SHORT = ["mesh=batch4_model2", "model.hidden=[16]", "dataset.batch_size=32", "tracking=none", "verify.steps=4"]
_CASES = {
    "groups": [
        *("optimizer=adamw", "optimizer.weight_decay=1.0", _GROUPS, "optimizer.gradient_norm=layer"),
        *("optimizer.schedule.name=one_cycle", "optimizer.clip.global_norm=0.5", "layout=megatron"),
    ],
    "lion": [
        *("optimizer=keras", "optimizer.class_name=Lion", "+optimizer.weight_decay=1.0", _GROUPS),
        *("optimizer.schedule.name=warmup_stable_decay", "optimizer.schedule.warmup_steps=2", "layout=fsdp_megatron"),
    ],
}


@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
@pytest.mark.parametrize("case", _CASES)
def test_a_schedule_with_groups_is_verified(tmp_path: Path, case: str, engine: str) -> None:
    done = command(tmp_path, f"engine={engine}", *_SHORT, *_CASES[case])
    assert "verified: 4 steps" in done.stdout
    checks = result(tmp_path)["checks"]
    norms = {check["name"] for check in checks if check["name"].startswith("metric/")}
    names = {"gradient_norm", "gradient_norm/d1", "gradient_norm/d2"} if case == "groups" else set()
    assert norms == {f"metric/{name}" for name in names}
    # One step from generic weights. Training from the start leaves biases of 1e-10, which agree to a few last bits.
    at_points = [float(check["ratio"]) for check in checks if check["kind"] in ("point", "update")]
    assert max(at_points) < 0.5, "far from the tolerances"


# One run per class; on DTensor, those with an update rule of ours.
_RUNS = {named(run): run for run in RUNS}
_OF_ENGINE = {"jax": [name for name, run in _RUNS.items() if name == run["class_name"]], "keras_dtensor": ELEMENTWISE}
_EVERY = [(engine, mesh, name) for engine, names in _OF_ENGINE.items() for mesh in MESHES for name in names]


def overrides_of(name: str, mesh: str) -> list[str]:
    """Returns the overrides of a run of `tests.optim.keras_runs` on a mesh."""
    run = _RUNS[name]
    axes, layout = MESHES[mesh]
    overrides = [f"mesh={mesh}", f"layout={layout}"]
    if mesh == "batch8":
        overrides.append(f"+mesh.axes.model={axes['model']}")
    rate = RATES.get(run["class_name"], 0.01)
    overrides += ["optimizer=keras", f"optimizer.class_name={run['class_name']}", f"optimizer.learning_rate={rate}"]
    for key, value in run.get("options", {}).items():
        overrides.append(f"+optimizer.{key}={value}")
    for key, value in run.get("keys", {}).items():
        overrides.append(f"{key}={value}")
    return overrides


@pytest.mark.parametrize(("engine", "mesh", "name"), _EVERY)
def test_every_optimizer_of_keras_is_verified_under_fsdp_megatron(
    tmp_path: Path, engine: str, mesh: str, name: str
) -> None:
    sizes = ["model.hidden=[32,16]", "model.activation=tanh", "dataset.batch_size=32", "verify.steps=4"]
    done = command(tmp_path, f"engine={engine}", *sizes, "tracking=none", *overrides_of(name, mesh))
    assert "verified: 4 steps" in done.stdout
    compared = [check["name"] for check in result(tmp_path)["checks"] if check["kind"] == "slot"]
    assert any(path.endswith("/d1/kernel") for path in compared), "the optimizer's state is compared"
