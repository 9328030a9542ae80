"""What a model writes is kept as it is, and shown without what a terminal would obey."""

from __future__ import annotations

from runner.train import samples


def test_control_characters_are_replaced() -> None:
    assert samples.shown("a\x1b[2Jb\tc\n\n\x07é\n") == [
        "  a\N{REPLACEMENT CHARACTER}[2Jb  c",
        "  \N{REPLACEMENT CHARACTER}é",
    ]
