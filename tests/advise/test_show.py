"""The table of advice fits a narrow terminal without breaks inside words or numbers."""

import io
from dataclasses import replace

import pytest

from runner.console import Console
from runner.plan.advise import ranking, show
from runner.plan.table import rich_table
from tests.advise.test_candidates import START, planned

AXES = (("batch", 8), ("experts", 4), ("sequence", 2), ("model", 2))


def entries() -> list[ranking.Planned]:
    """Returns candidates with the longest cells, and one with the shortest."""
    longest = replace(START, axes=AXES, layout="fsdp_megatron", remat="dots_saveable", accumulate=16, state="bfloat16")
    large = planned(longest, memory=285 << 29, seconds=1.0, verdict=ranking.TOO_LARGE)
    large = replace(large, step_seconds=(0.0865, 175.3))
    small = replace(planned(START, memory=6 << 30, seconds=0.1), step_seconds=(0.0865, 0.175))
    return [small, large]


def shown(width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(rich_table(show.table(entries()), width, show.DROP))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "dropped"), [(74, "bound"), (120, "")])
def test_no_word_and_no_number_is_broken(width: int, dropped: str) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    cells = ["experts=4", "fsdp_megatron", "remat=dots_saveable", "accumulate=16", "state=bfloat16"]
    cells += ["142 GiB", "6.00 GiB", "86.5 to 175 ms", "86.5 ms to 175 s"]
    for cell in cells:
        assert cell in text
    assert (f"no room for {dropped}:" in text) == bool(dropped)
