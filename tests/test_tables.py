"""Tables at any width: numbers are whole, headings broken first, what has no room named."""

import io

import pytest
from rich.console import Console

from runner.console import Column, fitted

COLUMNS = (
    Column("variable"),
    Column("worst in"),
    Column("relative_error", right=True, drop=2),
    Column("validation accuracy", right=True),
    Column("step ms", right=True, drop=1),
)
ROWS = [
    ("encoder/block_0/attention/query_projection/kernel", "update momentum", "1.2e-07", "0.9712", "103.2"),
    ("head/bias", "gradient", "3.4e-08", "0.8", "7.1"),
]


def printed(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(fitted(COLUMNS, ROWS, width, title="what was compared"))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_broken(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    for whole in ("head/bias", "0.9712", "update", "momentum", "accuracy"):
        assert any(whole in word for word in words), whole


def test_a_wide_terminal_has_every_row_on_one_line_and_names_nothing_missing() -> None:
    lines = printed(200)
    assert [line.split() for line in lines[-2:]] == [list(" ".join(row).split()) for row in ROWS]
    assert "relative_error" in lines[1]
    assert not any("no room" in line for line in lines)


def test_what_has_no_room_goes_in_its_order_and_is_named() -> None:
    assert any("no room for relative_error: make the terminal wider" in line for line in printed(60))
    assert "no room for relative_error, step ms" in " ".join(printed(44))
