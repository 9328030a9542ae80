"""The prompts of `runner.generate`, read and checked before a framework loads."""

from __future__ import annotations

from pathlib import Path

from runner.config.schema import GenerateConfig
from runner.errors import invalid


def prompts_of(config: GenerateConfig) -> tuple[str, list[str]]:
    """Returns the config key that the prompts come from, and the prompts.

    Args:
      config: the command's group.

    Raises:
      ConfigError: there is no prompt, there are two sources of prompts, or the file can't be read or has no prompts.
    """
    sources: dict[str, object] = {}
    if config.prompt is not None:
        sources["generate.prompt"] = config.prompt
    if config.prompts:
        sources["generate.prompts"] = config.prompts
    if config.file is not None:
        sources["generate.file"] = config.file
    if not sources:
        raise invalid(
            "generate.prompt",
            None,
            problem="runner.generate needs the start of a text",
            fix='set prompt="Once upon a time", generate.prompts or generate.file',
        )
    first_key, *other_keys = sources
    if other_keys:
        raise invalid(
            first_key,
            sources[first_key],
            problem=f"can't be combined with {' and '.join(other_keys)}",
            fix="set one of them",
        )
    if config.prompt is not None:
        return first_key, [config.prompt]
    if config.file is None:
        return first_key, list(config.prompts)
    return first_key, _lines(config.file)


def _lines(file: str) -> list[str]:
    """Returns the lines of a text file; blank ones are left out."""
    try:
        text = Path(file).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = "is not UTF-8"
        if isinstance(error, OSError):
            problem = f"can't be read ({error.strerror})"
        raise invalid(
            "generate.file", file, problem=problem, fix="name a text file with one prompt per line"
        ) from error
    # Not `splitlines`, which would cut a prompt at rare characters such as U+2028.
    prompts = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not prompts:
        raise invalid("generate.file", file, problem="has no prompts", fix="write one prompt per line")
    return prompts
