"""What a model writes is kept as it is, and shown without what a terminal would obey."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from runner.training import samples


def test_control_characters_are_replaced() -> None:
    assert samples.shown("a\x1b[2Jb\tc\n\n\x07é\n") == [
        "  a\N{REPLACEMENT CHARACTER}[2Jb  c",
        "  \N{REPLACEMENT CHARACTER}é",
    ]


def test_a_sample_is_written_as_utf8_whatever_the_locale(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    write = pathlib.Path.write_text

    def seen(path: pathlib.Path, text: str, encoding: str | None = None) -> int:
        given.append(encoding)
        return write(path, text, encoding)

    monkeypatch.setattr(pathlib.Path, "write_text", seen)
    monkeypatch.setattr(samples, "sample", lambda *_, **__: "Ä\x1b")
    made: Any = SimpleNamespace()
    samples.Samples(made, made, made, tmp_path, lambda *_: None).take(3)
    assert given == ["utf-8"]
    assert (tmp_path / "samples" / "step_000000003.txt").read_text("utf-8") == "Ä\x1b"
