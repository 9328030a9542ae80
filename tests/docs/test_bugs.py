"""Programs of docs/bugs: each is an issue that a person can file, and shows its bug in the pinned versions."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "docs" / "bugs").glob("*.py"))
LONGEST = 30


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short_and_its_docstring_an_issue_of_the_pinned_versions(path: Path) -> None:
    text = path.read_text()
    module = ast.parse(text)
    title, *parts = (ast.get_docstring(module) or "").split("\n\n")
    assert title.endswith(".")
    assert [part.split(":")[0] for part in parts] == ["Repository", "Expected", "Happened"]
    pinned = set(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    versions = re.findall(r"([\w-]+) (\d+(?:\.\d+)+)", parts[0])
    assert versions
    assert set(versions) <= pinned
    program = text.splitlines()[module.body[0].end_lineno :]
    assert len([line for line in program if line.strip()]) <= LONGEST


def test_each_program_has_its_section_on_the_page() -> None:
    page = (ROOT / "docs" / "bugs.md").read_text()
    assert len(re.findall(r"^## \d+\. ", page, re.M)) == len(PROGRAMS)


@pytest.mark.nightly
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_bug_still_shows(path: Path) -> None:
    # A bug that is gone ends with a message: its page, and what works around it here, can go.
    as_typed = os.environ | {"XLA_FLAGS": ""}  # without the tests' options of XLA
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=600, env=as_typed)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
