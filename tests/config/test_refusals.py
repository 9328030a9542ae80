"""Every bad input ends with exit code 2 and one line that names the key, the value and the fix."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.config.refusal_rows import ROWS, VALID
from tests.refusals import assert_refused, refuse_all, without_libraries

# `set key=value` at the beginning of a fix, or `add +key=value`.
SUGGESTED = re.compile(r"(?:set|add) \"?(\+?[\w./]+)=('[^']*'|[^ ,\"]+(?:,[^ ,\"]+)*)")
USER_MODULE = """
import no_such_package_that_only_an_import_would_find


def build(keras, input_shape, num_classes, width: int = 8):
    ...


def loss(ops, outputs, batch):
    ...


def data():
    ...
"""
Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each line did, all in one process of their own."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "user_module.py").write_text(USER_MODULE)
    lines = [*(line for line, *_ in ROWS), *VALID]
    return dict(zip(lines, refuse_all([line.split("  ") for line in lines], folder), strict=True))


@pytest.mark.parametrize(
    ("line", "shown"), [(line, shown) for line, *shown in ROWS], ids=[row[0][:100] for row in ROWS]
)
def test_bad_input_is_refused_in_one_line_and_leaves_no_folder(line: str, shown: list[str], answers: Answers) -> None:
    answer = answers[line]
    assert not answer["reached"], "the command ran"
    assert answer["code"] == 2
    assert_refused(shown, answer["out"], answer["err"])
    assert not answer["left"]


@pytest.mark.parametrize("line", VALID)
def test_what_only_looks_alike_passes(line: str, answers: Answers) -> None:
    assert (answers[line]["code"], answers[line]["err"]) == (0, "")


def suggestion(err: str) -> str | None:
    """Returns the override that an error suggests to set, as Hydra gets it; None: it is no override to try."""
    _, _, fix = err.strip().rpartition("; ")
    match = SUGGESTED.match(fix)
    if match is None:
        return None
    key, value = match[1], match[2].strip("'")
    is_whole = value.count("[") == value.count("]") and value.count("{") == value.count("}")
    is_example = any(part in value for part in ("...", "<", "package.", "my_project", "value"))
    return None if is_example or not is_whole else f"{key}={value}"


@pytest.mark.nightly
def test_what_an_error_suggests_is_accepted(answers: Answers, tmp_path: Path) -> None:
    """A suggestion is not what was typed. One for the same key ends its problem, and may show the next one."""
    errors: dict[tuple[str, ...], str] = {}
    for line, answer in answers.items():
        override = suggestion(answer["err"])
        if override is None:
            continue
        key = override.lstrip("+").partition("=")[0]
        given = {argument: argument.lstrip("+~").partition("=")[0] for argument in line.split("  ")}
        assert [one for one, its in given.items() if its == key][-1:] != [override], answer["err"]
        # Of Hydra's keys, -m and cluster=local, an accepted one would start processes.
        starts = key.startswith("hydra") or not given.keys().isdisjoint(("-m", "cluster=local"))
        if answer["err"].startswith(f"error: {key}=") and not starts:
            errors[*(one for one, its in given.items() if its != key), override] = answer["err"]
    (tmp_path / "user_module.py").write_text(USER_MODULE)
    for before, result in zip(errors.values(), refuse_all(list(errors), tmp_path), strict=True):
        problem, _, _ = before.partition(": ")[2].partition(": ")[2].rpartition("; ")
        assert result["reached"] or problem not in result["err"], f"{before}and then {result['err']}"


def _run(folder: Path, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Starts the real command, which may import nothing heavy."""
    path = without_libraries(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*forks.REAL)
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        return forks.python("-m", "runner", *words, folder=folder, code=code, PYTHONPATH=path, **environment)


@pytest.mark.parametrize("line", ["trainer.epochs=[1", "model=custom  model._target_=no_such_module.build"])
def test_the_process_refuses_with_code_2_before_importing_anything_heavy(line: str, tmp_path: Path) -> None:
    done = _run(tmp_path, *line.split("  "), f"hydra.run.dir={tmp_path / 'run'}", code=2)
    assert_refused([], done.stdout, done.stderr)
    assert not (tmp_path / "run").exists()


def test_cfg_job_prints_the_composed_config_without_importing_anything_heavy(tmp_path: Path) -> None:
    done = _run(tmp_path, "mesh=batch8", "trainer.epochs=7", "--cfg", "job")
    assert done.stderr == ""
    assert "epochs: 7" in done.stdout
    assert "batch: 8" in done.stdout


def test_full_error_shows_the_traceback_before_the_line(tmp_path: Path) -> None:
    done = _run(tmp_path, "trainer.epochs=0", f"hydra.run.dir={tmp_path / 'run'}", code=2, HYDRA_FULL_ERROR="1")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error: trainer.epochs=0:")
