"""The fuzz campaign, shortened; and that its judgement can fail."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.config.schema import EngineConfig
from tests.campaign import fuzz, fuzz_cases
from tests.campaign.fuzz import Ended, judged
from tests.campaign.fuzz_cases import Drawer, Line, schema_keys

LINE = Line("runner", ("trainer.epochs=0", "+mesh.axes.x=1"))


@pytest.mark.nightly
def test_command_lines_are_refused_by_name_or_work(tmp_path: Path) -> None:
    broken = [case for case in fuzz.run(150, 3, tmp_path, real=3) if not case.held]
    assert broken == []


def test_the_same_seed_draws_the_same_lines() -> None:
    first, again, other = (Drawer(random.Random(seed)) for seed in (5, 5, 6))
    lines = [first.line() for _ in range(30)]
    assert lines == [again.line() for _ in range(30)]
    assert lines != [other.line() for _ in range(30)]


def test_a_new_key_of_the_schema_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Extended(EngineConfig):
        """More.

        Attributes:
          brand_new: `one` or `two`.
        """

        brand_new: str = field(default="one")

    monkeypatch.setattr(fuzz_cases, "RunConfig", Extended)
    known = {key.name: key for key in schema_keys()}
    assert (known["brand_new"].kind, known["brand_new"].words) == (str, ("one", "two"))


def test_what_is_drawn_takes_the_place_of_the_campaigns_own() -> None:
    base = ("trainer.epochs=1", "dataset=digits", "verify.steps=2")
    assert LINE.arguments(base) == ["engine=jax", "dataset=digits", "verify.steps=2", *LINE.overrides]
    assert Line("runner", ("engine=x",)).arguments(base) == [*base, "engine=x"]


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


def test_a_file_that_is_gone_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "0" / "work"
    fuzz.lay_out(place)
    assert fuzz.touched(place) == ""
    (place.parent / "data.csv").unlink()
    assert "data.csv is gone or changed" in fuzz.touched(place)
