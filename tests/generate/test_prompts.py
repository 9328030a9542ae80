"""The prompts of `runner.generate`: where they come from, and what is invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import GenerateConfig
from runner.config.short_keys import typed_argument
from runner.errors import ConfigError
from runner.generate.prompts import prompts_of


def test_prompts_come_from_one_key(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("one \r\n\n two\u2028three".encode())
    assert typed_argument("prompt=a", "runner.generate") == "generate.prompt=a"
    assert prompts_of(GenerateConfig(prompt="a")) == ("generate.prompt", ["a"])
    assert prompts_of(GenerateConfig(prompts=["a", "b"])) == ("generate.prompts", ["a", "b"])
    assert prompts_of(GenerateConfig(file=str(file))) == ("generate.file", ["one ", " two\u2028three"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"generate.prompt=null: runner.generate needs the start of a text; set prompt="),
        ({"prompt": "a", "prompts": ["b"]}, r"generate.prompt=a: can't be combined with generate.prompts"),
        ({"file": "missing.txt"}, r"generate.file=missing.txt: can't be read \(No such file"),
        ({"file": "blank.txt"}, r"generate.file=blank.txt: has no prompts"),
        ({"file": "latin.txt"}, r"generate.file=latin.txt: is not UTF-8"),
    ],
)
def test_invalid_sources_are_one_line(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blank.txt").write_text(" \n\n")
    Path("latin.txt").write_bytes(b"\xe9t\xe9")
    with pytest.raises(ConfigError, match=message) as raised:
        prompts_of(GenerateConfig(**options))
    assert "\n" not in str(raised.value)
