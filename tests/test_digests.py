"""A table runs again where what it depends on has changed, and only there."""

from __future__ import annotations

import ast
import json

import pytest

from tests import digests

CODE = '"""About a module."""\n\n\ndef f(x):\n    """Doubles."""\n    return 2 * x  # twice\n'
# What runs a test of its own process with the plugin's parts, as tests/conftest.py does here.
CONFTEST = """
import pytest
from pathlib import Path
from tests import digests

digests.ROOT = Path(__file__).parent
RECORD = Path(__file__).parent / "digests.json"
digests.digest = lambda roots, files: (Path(__file__).parent / "state").read_text()


def pytest_configure(config):
    config.pluginmanager.register(digests.Recorder(RECORD))


def pytest_runtest_setup(item):
    digests.skip_if_unchanged(item, digests.recorded(RECORD))
"""
MARKED = """
import pytest
from pathlib import Path

@pytest.mark.when_changed()
@pytest.mark.parametrize("name", ["good", "bad"])
def test_row(name):
    assert name == "good"

def test_plain(): ...
"""


def normalized(code: str) -> str:
    return digests.without_docstrings(code)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("About a module.", "Functions."),
        CODE.replace("Doubles.", "Returns twice a number."),
        CODE.replace("  # twice", ""),
        CODE.replace("\n\n\n", "\n# why\n\n"),
    ],
)
def test_wording_does_not_change_a_module_s_digest(other: str) -> None:
    assert other != CODE
    assert normalized(other) == normalized(CODE)


@pytest.mark.parametrize(
    "other", [CODE.replace("2 * x", "3 * x"), CODE.replace("(x)", "(x, y=1)"), CODE + "VALUE = 1\n"]
)
def test_code_changes_a_module_s_digest(other: str) -> None:
    assert normalized(other) != normalized(CODE)


def test_a_command_depends_on_its_parts_and_not_on_other_commands() -> None:
    reached = digests.closure(["runner.verify"])
    assert {"runner.verify.verdict", "runner.errors", "runner.layout.rules", "runner"} <= reached
    assert not any(name.startswith(("runner.sweep", "runner.compare")) for name in digests.closure(["runner.layout"]))


def test_a_test_depends_on_the_programs_that_it_starts_by_name_or_by_their_text() -> None:
    assert "tests.plan.exact_worker" in digests.closure(["tests.plan.test_exact"])
    started = 'RUN = "python -m runner.plan x"\nOTHER = "a.b"\n'
    program = 'PROGRAM = """\nimport sys\nfrom runner.layout import rules\n"""\n'
    named = digests._named_by(ast.parse(started + program)) & {*digests._known()}
    assert named == {"runner.plan", "runner.plan.__main__", "runner.layout", "runner.layout.rules"}


def test_a_command_of_a_package_is_named_by_a_string_of_its_own() -> None:
    command = ast.parse('RUN = [python, "-m", "runner", "mesh=batch8"]\nWORD = "the runner starts"\n')
    assert digests._named_by(command) & {*digests._known()} == {"runner", "runner.__main__"}


def test_a_package_counts_with_every_module_in_it() -> None:
    assert {"runner.engine.jax.engine", "runner.engine.dtensor.engine"} <= digests.closure(["runner.engine"])


def test_each_of_the_roots_and_files_counts() -> None:
    base = digests.digest(("runner.layout",), ())
    assert digests.digest(("runner.layout", "runner.sweep"), ()) != base
    assert digests.digest(("runner.layout",), ("docs/layouts.md",)) != base
    assert digests.digest(("runner.layout",), ()) == base


@pytest.mark.parametrize(("roots", "files"), [(("runner.nothing",), ()), (("runner",), ("docs/nothing.md",))])
def test_what_does_not_exist_is_an_error(roots: tuple[str, ...], files: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"no (module is called|file matches) .*nothing"):
        digests.digest(roots, files)


def test_a_passed_row_is_skipped_until_something_changes(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  when_changed: w\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=MARKED)
    state = pytester.path / "state"
    options = ("-p", "no:cacheprovider", "-p", "no:xdist")

    state.write_text("before")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2, failed=1)
    record = json.loads((pytester.path / "digests.json").read_text())
    assert record == {"test_it.py::test_row[good]": "before"}, "a row that fails is not kept"

    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1, failed=1, skipped=1)

    state.write_text("after")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2, failed=1)


def test_every_recorded_digest_is_of_a_test_that_exists() -> None:
    for node in digests.recorded():
        path, _, name = node.partition("::")
        function = name.partition("[")[0]
        assert f"def {function}(" in (digests.ROOT / path).read_text(), node
