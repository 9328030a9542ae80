"""Every bad input ends with exit code 2 and one line that names the key, the value and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.config import refusal_rows
from tests.nightly import nightly_except
from tests.refusals import ROOT, Refusal, assert_refused, chosen_cases, corrected, name, refuse_all, suggestion
from tests.refused_command_lines import COMMAND_LINES

HEAVY = ("tensorflow", "tf_keras", "jax", "mlflow", "keras")

USER_MODULE = """
import no_such_package_that_only_an_import_would_find

VALUE = 3


def build(keras, input_shape, num_classes, width: int = 8):
    ...


def loss(ops, outputs, batch):
    ...


def data():
    ...
"""

REFUSALS = [
    *refusal_rows.REFUSALS,
    *(Refusal(tuple(line.split("  ")), tuple(shown)) for line, *shown in COMMAND_LINES),
]

# Those that reach every stage: Hydra's grammar, a group, a key, a type, the checks, the builder's path.
THROUGH_THE_PROCESS = [
    "trainer.epochs=[1",
    "mesh=batch9",
    "trainer.epoch=2",
    "trainer.epochs=many",
    "mesh=batch8 dataset.batch_size=100",
    "model=custom model._target_=no_such_module.build",
    "-m trainer.seed=1,2 hydra.launcher.max_parallel=0",
]
ALWAYS = ["trainer.epochs=[1", "mesh=batch9", "model=custom model._target_=no_such_module.build"]


def _write_user_modules(folder: Path) -> None:
    (folder / "user_module.py").write_text(USER_MODULE)


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    _write_user_modules(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, ...], dict[str, Any]]:
    """What each case did, all in one process of their own; each had the folder `<number>` for its run."""
    folder = tmp_path_factory.mktemp("refused")
    _write_user_modules(folder)
    return refuse_all(chosen_cases(request), folder)


@pytest.mark.parametrize("case", nightly_except(REFUSALS[::6], REFUSALS), ids=name)
def test_bad_input_is_refused_in_one_line_and_leaves_no_folder(
    case: Refusal, refused: dict[tuple[str, ...], dict[str, Any]]
) -> None:
    result = refused[case.args]
    assert not result["reached"], "the command ran"
    assert result["code"] == 2
    assert_refused(case, result["out"], result["err"])
    assert not result["left"]


def test_what_an_error_suggests_is_accepted(refused: dict[tuple[str, ...], dict[str, Any]], tmp_path: Path) -> None:
    """A suggestion is not what was typed. One for the same key ends its problem, and may show the next one."""
    told: dict[Refusal, str] = {}
    for args, result in refused.items():
        override = suggestion(result["err"])
        if override is None:
            continue
        key, _, _ = override.lstrip("+").partition("=")
        typed = [argument for argument in args if argument.lstrip("+~").startswith(f"{key}=")]
        assert typed[-1:] != [override], result["err"]
        # Of Hydra's keys and -m, an accepted one would start jobs.
        if result["err"].startswith(f"error: {key}=") and not key.startswith("hydra") and "-m" not in args:
            told[corrected(Refusal(args, ()), override)] = result["err"]
    _write_user_modules(tmp_path)
    # Each composes a config, which takes a second, so not all where all cases run.
    cases = list(told)[:: 1 + len(told) // 40]
    corrections = refuse_all(cases, tmp_path)
    for case in cases:
        before = told[case]
        result = corrections[case.args]
        problem, _, _ = before.partition(": ")[2].partition(": ")[2].rpartition("; ")
        assert result["reached"] or problem not in result["err"], f"{before}and then {result['err']}"


def _run(folder: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the real command where importing anything heavy ends the process with exit code 1."""
    blocked = folder / "blocked"
    blocked.mkdir()
    for module in HEAVY:
        (blocked / f"{module}.py").write_text(f"raise SystemExit('imported {module}')\n")
    kept = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    return subprocess.run(
        [sys.executable, "-m", "runner", *args],
        cwd=folder,
        env=kept | {"PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("args", nightly_except(ALWAYS, THROUGH_THE_PROCESS))
def test_the_process_refuses_with_code_2_before_importing_anything_heavy(args: str, user_folder: Path) -> None:
    case = next(case for case in REFUSALS if name(case) == args)
    done = _run(user_folder, *case.args, f"hydra.run.dir={user_folder / 'run'}")
    assert done.returncode == 2
    assert_refused(case, done.stdout, done.stderr)
    assert not (user_folder / "run").exists()


def test_help_lists_groups_without_importing_anything_heavy(tmp_path: Path) -> None:
    done = _run(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mesh: batch1_model1, batch2, batch2_experts4, batch2_height2" in done.stdout
    assert "--multirun" in done.stdout


def test_cfg_job_prints_the_composed_config_without_importing_anything_heavy(tmp_path: Path) -> None:
    done = _run(tmp_path, "mesh=batch8", "trainer.epochs=7", "--cfg", "job")
    assert (done.returncode, done.stderr) == (0, "")
    assert "epochs: 7" in done.stdout
    assert "batch: 8" in done.stdout


def test_full_error_shows_the_traceback_before_the_line(tmp_path: Path) -> None:
    done = _run(tmp_path, "trainer.epochs=0", f"hydra.run.dir={tmp_path / 'run'}", HYDRA_FULL_ERROR="1")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error: trainer.epochs=0:")
