"""What the engine `jax` needs installed, what it leaves alone, and the environment that keeps virtual devices safe."""

import json
import os
from pathlib import Path

import pytest

from runner.config.schema import EngineConfig, MeshConfig
from runner.engine.jax import environment
from runner.host import cores
from tests import forks
from tests.commands import ran, without_packages

DIGITS = ["engine=jax", "dataset=digits", "tracking=none", "trainer.progress=lines"]


def test_without_the_extra_the_engine_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*forks.REAL)
    done = ran(tmp_path, "runner", *DIGITS, code=2, **without_packages(tmp_path, "jax", "jaxlib"))
    assert done.stderr.splitlines() == [
        "error: engine.name=jax: needs jax, which is not installed; pip install -e '.[jax]'"
    ]
    assert "loaded: \n" in done.stdout + "\n"


@pytest.mark.nightly
@pytest.mark.slow
def test_it_trains_where_tensorflow_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*forks.REAL)
    words = [*DIGITS, "mesh=batch2_height2", "layout=spatial", "model=vit", "model.patch=2"]
    words.append(f"hydra.run.dir={tmp_path / 'run'}")
    done = ran(tmp_path, "runner", *words, **without_packages(tmp_path, "tensorflow", "tf_keras"))
    assert "loaded: jax,keras\n" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_accuracy"] > 0.7  # three epochs; chance is 0.1
    assert (tmp_path / "run" / "confusion.png").stat().st_size > 10_000


def test_xla_gets_a_thread_a_device_and_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {cores.VARIABLE: "6"})
    environment.prepare_environment(EngineConfig(), MeshConfig({"batch": 16, "model": 8}), 600.0)
    assert os.environ["PJRT_NPROC"] == "134"
    assert os.environ["KERAS_BACKEND"] == "jax"
    assert os.environ["JAX_PLATFORMS"] == "cpu"


def test_a_job_beside_others_takes_the_threads_of_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(os, "environ", {cores.VARIABLE: "4"})
    assert environment.threads(devices=1) == 4
    assert environment.threads(devices=8) == 12
    monkeypatch.setattr(os, "environ", {cores.VARIABLE: "1"})
    assert environment.threads(devices=8) == 10, "two more than the devices need, however few the cores"
    monkeypatch.setattr(os, "environ", {})
    assert environment.threads(devices=1) == 64


def test_what_the_environment_says_already_is_kept_where_it_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = "--xla_cpu_collective_call_terminate_timeout_seconds"
    monkeypatch.setattr(os, "environ", {"PJRT_NPROC": "512", "XLA_FLAGS": f"--xla_cpu_enable_fast_math=true {flag}=7"})
    environment.prepare_environment(EngineConfig(), MeshConfig({"batch": 8}), 600.0)
    assert os.environ["PJRT_NPROC"] == "512"
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[:2] == ["--xla_cpu_enable_fast_math=true", f"{flag}=7"]
    assert sum(each.startswith(flag) for each in flags) == 1
