"""The prompts of `runner.generate`: where they come from, and what is invalid."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.generate import prompts_of
from runner.config.schema import GenerateConfig
from runner.config.short_keys import typed_argument
from runner.errors import ConfigError


def test_prompts_come_from_one_key() -> None:
    assert typed_argument("prompt=a", "runner.generate") == "generate.prompt=a"
    assert prompts_of(GenerateConfig(prompt="a")) == ("generate.prompt", ["a"])
    assert prompts_of(GenerateConfig(prompts=["a", "b"])) == ("generate.prompts", ["a", "b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"generate.prompt=null: runner.generate needs the start of a text; set prompt="),
        ({"prompt": "a", "prompts": ["b"]}, r"generate.prompt=a: can't be combined with generate.prompts"),
    ],
)
def test_invalid_sources_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        prompts_of(GenerateConfig(**options))
    assert "\n" not in str(raised.value)
