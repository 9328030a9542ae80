"""Every bad input ends with exit code 2 and one line that names the key, the value and the fix."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from runner.cli import suggestions as suggestions_of_cli
from tests import forks
from tests.config.refusal_rows import FOREIGN, ROWS, VALID
from tests.refusals import assert_refused, refuse_all, without_libraries

# An override within a fix: in quotes for the shell, or plain.
SUGGESTED = re.compile(
    r"""(?:("[^"]+=[^"]*"|'[^"]+="[^']*)|(?<![\w.=])(\+?[a-z_][\w./]*=(?:'[^']*'|[^\s,;?"]+(?:,[^\s,;?"]+)*)))"""
)
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


def suggestions(err: str) -> list[list[str]]:
    """Returns the overrides that an error suggests, as Hydra gets them: one list for each of its alternatives."""
    alternatives = []
    for fix in re.split(r",? or |, and for a list ", err.strip().partition("; ")[2]):
        found = [shlex.split(quoted)[0] if quoted else plain for quoted, plain in SUGGESTED.findall(fix)]
        is_example = any(sign in one for one in found for sign in ("...", "<", "package.", "my_project", "value"))
        if found and not is_example:
            alternatives.append([one.partition(",")[0] if "type -m" in fix else one for one in found])
    return alternatives


def test_every_row_of_suggestions_is_typed() -> None:
    typed = re.split(r"\||\n|  ", FOREIGN)
    tables = yaml.safe_load((Path(suggestions_of_cli.__file__).with_suffix(".yaml")).read_text())
    rows = [f"(--)?({'|'.join(names.split())})=.*" for names in tables["keys"]]
    rows += [row for row, typed_instead in tables["options"].items() if typed_instead and row != "dataset=hf"]
    assert [row for row in rows if not any(re.fullmatch(row, one.strip(), re.IGNORECASE) for one in typed)] == []


@pytest.mark.nightly
def test_what_an_error_suggests_is_accepted(answers: Answers, tmp_path: Path) -> None:
    """Each suggestion is typed in place of the argument that the error names, and of those with its keys.

    It is accepted, or has another problem, which an error could not know. What is suggested for names of other tools
    is accepted at once.
    """
    (tmp_path / "user_module.py").write_text(USER_MODULE)
    (tmp_path / "data").mkdir()
    for name in ("data/scans.npz", *(f"scans.{kind}" for kind in ("npz", "parquet", "txt", "arrow"))):
        (tmp_path / name).touch()
    foreign = [line.strip() for line in re.split(r"[|\n]", FOREIGN) if line.strip()]
    errors = {line: answer["err"] for line, answer in answers.items() if answer["err"]}
    refused = refuse_all([line.split("  ") for line in foreign], tmp_path)
    errors |= {line: answer["err"] for line, answer in zip(foreign, refused, strict=True)}
    typed: dict[tuple[str, ...], str] = {}
    leads = set()
    for line, error in errors.items():
        named = error.removeprefix("error: ").removeprefix("'")
        for suggested in suggestions(error):
            leads.add(line)
            keys = {one.lstrip("+").partition("=")[0] for one in suggested}
            # An error may name an entry of a list.
            kept = [one for one in line.split("  ") if not named.startswith((one, f"{one.partition('=')[0]}["))]
            kept = [one for one in kept if one.lstrip("+~").partition("=")[0] not in keys | {"", "mesh", "batch8"}]
            # -m, and cluster=local would start processes.
            if {"-m", "cluster=local"}.isdisjoint(kept) and not any(key.startswith("hydra") for key in keys):
                typed[*kept, *suggested] = line
    results = dict(zip(typed, refuse_all(list(typed), tmp_path), strict=True))
    wrong = []
    for one, line in typed.items():
        problem, _, _ = errors[line].partition(": ")[2].partition(": ")[2].partition("; ")
        is_fine = results[one]["reached"] or (line not in foreign and problem not in results[one]["err"])
        # This machine has no scheduler, and the command that is typed trains.
        if not is_fine and not any(
            said in results[one]["err"] for said in ("no scheduler", "is required", "plans for")
        ):
            wrong.append(f"{errors[line]}then typed: {' '.join(one)}\n{results[one]['err']}")
    assert not wrong, "\n".join(wrong)
    assert not set(foreign) - leads, "these lead nowhere"


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


def test_full_error_shows_the_traceback_before_the_line(tmp_path: Path) -> None:
    done = _run(tmp_path, "trainer.epochs=0", f"hydra.run.dir={tmp_path / 'run'}", code=2, HYDRA_FULL_ERROR="1")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error: trainer.epochs=0:")
