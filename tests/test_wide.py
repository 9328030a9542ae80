"""The marker `wide` leaves some cases of a test to the campaign."""

from __future__ import annotations

import pytest

CONFTEST = "from tests import wide\ndef pytest_collection_modifyitems(items):\n    wide.mark(items)\n"
MARKED = """
import pytest

@pytest.mark.wide(keep=['2'])
@pytest.mark.parametrize('case', [1, 2, 3])
def test_kept(case): ...

@pytest.mark.wide(every=2)
@pytest.mark.parametrize('case', [1, 2, 3])
def test_every(case): ...

@pytest.mark.campaign
def test_left(): ...

def test_plain(): ...
"""


@pytest.fixture
def marked(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n  wide: w\n")
    pytester.makeconftest(CONFTEST)
    return pytester


def passed(pytester: pytest.Pytester, chosen: str) -> list[str]:
    done = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", "-m", chosen)
    reports, skipped, failed = done.listoutcomes()
    assert (skipped, failed) == ([], [])
    return [report.nodeid.partition("::")[2] for report in reports]


def test_a_case_that_is_not_kept_is_a_campaign(marked: pytest.Pytester) -> None:
    marked.makepyfile(test_it=MARKED)
    assert passed(marked, "not campaign") == ["test_kept[2]", "test_every[1]", "test_every[3]", "test_plain"]
    assert passed(marked, "campaign") == ["test_kept[1]", "test_kept[3]", "test_every[2]", "test_left"]


def test_a_kept_case_that_does_not_exist_is_an_error(marked: pytest.Pytester) -> None:
    marked.makepyfile(test_it=MARKED.replace("'2'", "'4'"))
    done = marked.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*keeps cases that do not exist*"])
