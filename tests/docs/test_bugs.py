"""The bugs of docs/bugs.md still exist: each program exits with 0 while its bug does."""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
import sys

import pytest

from tests.docs import bug_report, pages

FOLDER = pages.ROOT / "docs" / "bugs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
NEEDS = {"keras_hub_llama_layout": "keras_hub"}
NUMBER = r"-?\d+(?:\.\d*)?"
# What another run prints differently from the page: random weights, races, times, and rounding of another processor.
VARIES = {
    "dtensor_metric": r"0\.0",
    "keras_rnn_mask": r"(?<=\[)(?![\[ ]*0\. )[^\]]*",
    "xla_loop_convolution": NUMBER,
    "xla_maximum_gradient": r"74\.7",
    "xla_threads": r"(?<=\[id=)\d+",
}


def shown(name: str) -> list[str]:
    """Returns the lines of a program's output that the page shows; `...` in a line means any text."""
    text = pages.path_of("bugs").read_text().partition(f"\npython docs/bugs/{name}.py\n```\n")[2]
    output = re.match(r"\n```\n(.*?)^```$", text, flags=re.M | re.S)
    assert output, f"docs/bugs.md shows no output after the command of {name}"
    lines = output[1].rstrip("\n").splitlines()
    return [re.sub(VARIES[name], "...", line) for line in lines] if name in VARIES else lines


def test_the_page_lists_every_program() -> None:
    text = pages.path_of("bugs").read_text()
    assert sorted(set(re.findall(r"docs/bugs/(\w+)\.py", text))) == PROGRAMS
    rows = re.findall(r"^\| \[(\d+)\]\(#", text, flags=re.M)
    assert rows == [str(number) for number in range(1, len(PROGRAMS) + 1)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_shows_what_a_program_prints(name: str) -> None:
    assert shown(name)


@pytest.mark.parametrize("number", range(1, len(PROGRAMS) + 1))
def test_a_report_has_what_a_maintainer_needs_and_nothing_of_the_runner(number: int) -> None:
    text = bug_report.report(number)
    assert text.startswith(f"# {bug_report.REPORTS[number].title}\n")
    assert len(text.partition("## Program")[0].split()) > 15
    for part in ('```python\n"""', "import sys", "## Output\n\n```\n", f"- Python {platform.python_version()}"):
        assert part in text
    assert re.search(r"^## Output\n\n```\n\S", text, flags=re.M)
    assert re.search(r"^- First affected version: .*(\d|not known)", text, flags=re.M)
    assert "**Here**" not in text
    assert "runner" not in text.lower()


def test_a_report_names_the_first_affected_version_of_the_table() -> None:
    assert "- First affected version: jaxlib 0.7.1\n" in bug_report.report(14)


def test_every_program_has_a_docstring_and_does_not_import_the_runner() -> None:
    for name in PROGRAMS:
        text = (FOLDER / f"{name}.py").read_text()
        assert text.startswith('"""'), name
        assert not re.search(r"^(from|import) (runner|tests)", text, flags=re.M), name


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bug_still_exists(name: str) -> None:
    if (needed := NEEDS.get(name)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (
        f"docs/bugs/{name}.py does not show its bug any more\n{done.stdout}\n{done.stderr[-2000:]}"
    )
    printed, on_page = done.stdout.splitlines(), shown(name)
    assert len(printed) == len(on_page), done.stdout
    assert [one for one, line in zip(printed, on_page, strict=True) if not pages.matches(one, line.strip())] == []
