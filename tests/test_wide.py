"""The table of wide tests names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import wide

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("test", wide.KEPT)
def test_what_is_named_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert not name or name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_a_case_that_is_not_kept_is_a_campaign(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wide.KEPT, "test_it.py::test_some", ("1",))
    monkeypatch.setitem(wide.KEPT, "test_none.py", ())
    pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n")
    pytester.makeconftest("from tests import wide\ndef pytest_collection_modifyitems(items):\n    wide.mark(items)\n")
    some = "import pytest\n@pytest.mark.parametrize('case', [1, 2])\ndef test_some(case): ...\ndef test_other(): ...\n"
    pytester.makepyfile(test_it=some, test_none="def test_one(): ...\n")
    left = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not campaign")
    passed, *_ = left.listoutcomes()
    assert [report.nodeid for report in passed] == [
        "test_it.py::test_some[1]",
        "test_it.py::test_other",
    ]
