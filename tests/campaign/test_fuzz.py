"""The fuzz campaign, shortened; and that its judgement can fail."""

from pathlib import Path

import pytest

from tests.campaign import fuzz
from tests.campaign.fuzz import Ended, judged
from tests.campaign.fuzz_cases import Line

LINE = Line("runner", ("trainer.epochs=0", "+mesh.axes.x=1"))


@pytest.mark.nightly
def test_command_lines_are_refused_by_name_or_work(tmp_path: Path) -> None:
    broken = [case for case in fuzz.run(30, 3, tmp_path) if not case.held]
    assert broken == []


@pytest.mark.parametrize(
    ("ended", "held"),
    [
        (Ended(0, "trained", ""), True),
        (Ended(2, "", "error: trainer.epochs=0 is refused\n"), True),
        (Ended(1, "a tree", "error: no x there\n"), True),
        (Ended(130, "", "interrupted\n"), True),
        (Ended(2, "", "error: epoch=0 is refused\n"), False),
        (Ended(2, "", "error: trainer.epochs=0 is refused\nand more\n"), False),
        (Ended(2, "", "trainer.epochs=0 is refused\n"), False),
        (Ended(1, "", "Traceback (most recent call last):\nerror: trainer.epochs\n"), False),
        (Ended(-9, "", ""), False),
        (Ended(None, "", "trainer.epochs\n"), False),
    ],
)
def test_a_line_is_held_where_it_works_or_is_refused_by_name(ended: Ended, held: bool) -> None:
    assert judged(LINE, ended)[0] == held
