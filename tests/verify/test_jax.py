"""The engine `jax` beside plain Keras 3 on one device, with TensorFlow installed and without."""

from pathlib import Path

import pytest

from tests import forks
from tests.commands import without_packages
from tests.verify.test_verify import command, failures, result

pytestmark = pytest.mark.slow


# The mutation campaign verifies its unmodified networks, a convnet and a transformer among them.
def test_the_mesh_equals_plain_keras_on_one_device(tmp_path: Path) -> None:
    chosen = ["mesh=batch8", "dataset.remainder=pad", "verify.steps=3", "tracking=none"]
    done = command(tmp_path, "engine=jax", *chosen)
    content = result(tmp_path)
    assert f"verified: 3 steps on {content['mesh']} match one device" in done.stdout
    assert {check["kind"] for check in content["checks"]} >= {"initial", "loss", "gradient", "parameter", "slot"}
    assert max(float(check["ratio"]) for check in content["checks"]) < 0.25, "far from the tolerances"


BFLOAT16 = ["engine=jax", "engine.precision=bfloat16", "mesh=batch2", "verify.steps=3", "tracking=none"]


@pytest.mark.nightly
@pytest.mark.parametrize("state", ["float32", "master", "bfloat16"])
def test_bfloat16_is_compared_with_one_device_and_a_wrong_gradient_is_seen(tmp_path: Path, state: str) -> None:
    chosen = [*BFLOAT16, f"engine.state={state}", "layout=fsdp", "optimizer.ema.decay=0.9"]
    done = command(tmp_path, *chosen)
    assert "verified: 3 steps" in done.stdout
    assert "and half an ulp of the lower precision" in " ".join(done.stdout.split())
    assert ("stored in bfloat16" in " ".join(done.stdout.split())) == (state == "bfloat16")
    command(tmp_path, *chosen, module="tests.verify.broken", code=1, BREAK="larger_gradient")
    assert {"gradient/d2/kernel", "point0/gradient/d2/kernel"} <= set(failures(tmp_path))


@pytest.mark.nightly
def test_in_parts_and_with_averages_the_mesh_equals_one_device(tmp_path: Path) -> None:
    chosen = ["trainer.accumulate_steps=2", "optimizer.ema.decay=0.9", "dataset.remainder=pad", "mesh=batch2"]
    command(tmp_path, "engine=jax", "verify.steps=23", "tracking=none", *chosen)  # the last step is padded
    checks = result(tmp_path)["checks"]
    assert {check["kind"] for check in checks} >= {"average", "parameter", "slot"}
    assert max(float(check["ratio"]) for check in checks) < 0.25, "far from the tolerances"


@pytest.mark.nightly
@pytest.mark.parametrize("blocked", [("tensorflow", "tf_keras", "mlflow"), ()])
def test_it_needs_no_tensorflow_and_loads_none_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: tuple[str, ...]
) -> None:
    monkeypatch.setenv(*forks.REAL)
    chosen = ["engine=jax", "mesh=batch2", "model.hidden=[16]", "verify.steps=2", "tracking=none"]
    done = command(tmp_path, *chosen, **without_packages(tmp_path, *blocked))
    assert not blocked or done.stdout.endswith("loaded: \n"), "the main process computes nothing"
    assert (tmp_path / "run" / "verify.log").read_text().endswith("loaded: jax,keras\n")
