"""The prompts of `runner.generate`, checked before a framework loads."""

from __future__ import annotations

from runner.config.schema import GenerateConfig
from runner.errors import invalid


def prompts_of(config: GenerateConfig) -> tuple[str, list[str]]:
    """Returns the config key that the prompts come from, and the prompts.

    Args:
      config: the command's group.

    Raises:
      ConfigError: there is no prompt, or there are two sources of prompts.
    """
    if config.prompt is None:
        if not config.prompts:
            raise invalid(
                "generate.prompt",
                None,
                problem="runner.generate needs the start of a text",
                fix='set prompt="Once upon a time" or generate.prompts',
            )
        return "generate.prompts", list(config.prompts)
    if config.prompts:
        raise invalid(
            "generate.prompt",
            config.prompt,
            problem="can't be combined with generate.prompts",
            fix="set one of them",
        )
    return "generate.prompt", [config.prompt]
