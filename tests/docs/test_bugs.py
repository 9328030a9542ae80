"""The bugs of docs/bugs.md are still there: each program ends with 0 while it sees its own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.docs import pages

FOLDER = pages.ROOT / "docs" / "bugs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
NEEDS = {"keras_hub_llama_layout": "keras_hub"}


def test_every_program_stands_on_the_page() -> None:
    text = pages.path_of("bugs").read_text()
    assert sorted(set(re.findall(r"docs/bugs/(\w+)\.py", text))) == PROGRAMS


def test_every_program_says_what_it_shows_and_imports_nothing_of_ours() -> None:
    for name in PROGRAMS:
        text = (FOLDER / f"{name}.py").read_text()
        assert text.startswith('"""'), name
        assert not re.search(r"^(from|import) (runner|tests)", text, flags=re.M), name


@pytest.mark.campaign
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bug_is_still_there(name: str) -> None:
    if (needed := NEEDS.get(name)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (
        f"the bug of docs/bugs/{name}.py is not seen any more\n{done.stdout}\n{done.stderr[-2000:]}"
    )
