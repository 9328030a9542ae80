"""The marker `rotates` runs some cases of a campaign, of every kind, and all of them in turn."""

from __future__ import annotations

import pytest

from tests.rotation import Case

CONFTEST = """
from tests import rotation

def pytest_collection_modifyitems(items):
    rotation.mark(items)

def pytest_runtest_setup(item):
    rotation.skip_others(item, lambda: "{state}")
"""
MARKED = """
import pytest

@pytest.mark.campaign
@pytest.mark.rotates(every=4, by=['engine'])
@pytest.mark.parametrize('case', range(6))
@pytest.mark.parametrize('engine', ['a', 'b'])
def test_table(case, engine): ...

@pytest.fixture(scope="module", params=["one", "two", "three"])
def trained(request):
    return request.param

@pytest.mark.campaign
@pytest.mark.rotates(every=3, over='trained')
def test_losses(trained): ...

@pytest.mark.campaign
@pytest.mark.rotates(every=3, over='trained')
@pytest.mark.parametrize('case', [1, 2])
def test_states(trained, case): ...

@pytest.mark.parametrize('case', [1, 2])
def test_no_campaign(case): ...
"""


def passed(pytester: pytest.Pytester, state: str, *chosen: str) -> set[str]:
    pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n  rotates: r\n")
    pytester.makeconftest(CONFTEST.replace("{state}", state))
    pytester.makepyfile(test_it=MARKED)
    done = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", *chosen)
    reports, _, failed = done.listoutcomes()
    assert failed == []
    return {report.nodeid.partition("::")[2] for report in reports}


def test_some_cases_of_each_kind_run_and_all_in_turn(pytester: pytest.Pytester) -> None:
    ran = [passed(pytester, f"state {number}") for number in range(12)]
    for names in ran:
        for engine in ("a", "b"):
            assert 1 <= sum(name.startswith(f"test_table[{engine}-") for name in names) <= 2
        (mesh,) = [name for name in ("one", "two", "three") if f"test_losses[{name}]" in names]
        assert {name for name in names if "states" in name} == {f"test_states[{mesh}-1]", f"test_states[{mesh}-2]"}
        assert {"test_no_campaign[1]", "test_no_campaign[2]"} <= names
    assert len(set.union(*ran)) == 14 + 9
    assert passed(pytester, "state 3") == ran[3]


def test_a_case_that_is_asked_for_runs(pytester: pytest.Pytester) -> None:
    for case in range(6):
        assert passed(pytester, "state", f"test_it.py::test_table[a-{case}]") == {f"test_table[a-{case}]"}
    ids = [f"test_it.py::test_losses[{mesh}]" for mesh in ("one", "two", "three")]
    for asked in (ids[:1], ids[1:2], ids[2:], ids):
        assert passed(pytester, "state", *asked) == {name.partition("::")[2] for name in asked}


@pytest.mark.campaign
def test_each_eighth_file_of_campaigns_without_the_marker_runs(pytester: pytest.Pytester) -> None:
    files = [f"test_file{number}" for number in range(16)]
    pytester.makepyfile(
        **dict.fromkeys(files, "import pytest\n@pytest.mark.campaign\ndef test_one(): ...\ndef test_fast(): ..."),
    )
    counts = []
    for state in range(24):
        pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n  rotates: r\n")
        pytester.makeconftest(CONFTEST.replace("{state}", f"state {state}"))
        done = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", *(f"{name}.py" for name in files))
        reports, _, failed = done.listoutcomes()
        assert failed == []
        ran = [report.nodeid for report in reports]
        assert sum(name.endswith("::test_fast") for name in ran) == 16
        counts.append(frozenset(name for name in ran if name.endswith("::test_one")))
    assert {len(names) for names in counts} == {2}
    assert len(frozenset.union(*counts)) == 16
    alone = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", "test_file1.py").listoutcomes()
    assert len(alone[0]) == 2


AT_EVERY_STATE = """
import pytest

@pytest.mark.campaign
@pytest.mark.rotates(every=1)
@pytest.mark.parametrize('case', [1, 2])
def test_always(case): ...

@pytest.mark.campaign
def test_in_turn(): ...
"""


@pytest.mark.campaign
def test_a_test_of_every_state_leaves_the_others_of_its_file_as_they_are(pytester: pytest.Pytester) -> None:
    files = [f"test_file{number}" for number in range(8)]
    pytester.makepyfile(**dict.fromkeys(files, AT_EVERY_STATE))
    turns = set()
    for state in range(24):
        pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n  rotates: r\n")
        pytester.makeconftest(CONFTEST.replace("{state}", f"state {state}"))
        done = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", *(f"{name}.py" for name in files))
        ran = [report.nodeid for report in done.listoutcomes()[0]]
        assert sum("::test_always" in name for name in ran) == 16
        (turn,) = (name for name in ran if name.endswith("::test_in_turn"))
        turns.add(turn)
    assert len(turns) == 8


def count(length: int, every: int, state: str, *, at_least_one: bool) -> int:
    cases = [Case("list", place, length, every, at_least_one) for place in range(length)]
    return sum(case.runs(state) for case in cases)


@pytest.mark.parametrize(("length", "every"), [(1, 9), (3, 9), (9, 9), (10, 9), (20, 3), (5, 1)])
def test_each_list_runs_one_case_of_so_many_and_at_least_one_where_it_is_asked_for(length: int, every: int) -> None:
    for state in "abcdefgh":
        assert length // every <= count(length, every, state, at_least_one=False) <= -(-length // every)
        assert max(1, length // every) <= count(length, every, state, at_least_one=True) <= -(-length // every)


def test_a_short_list_runs_as_often_as_each_case_of_a_long_one() -> None:
    ran = sum(count(1, 4, str(state), at_least_one=False) for state in range(400))
    assert 70 <= ran <= 130  # 100 are expected, with a standard deviation of 9


def test_what_names_no_parameter_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  campaign: c\n  rotates: r\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=MARKED.replace("by=['engine']", "by=['engin']"))
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*pytest.mark.rotates names {'engin'}, of *engine*"])
