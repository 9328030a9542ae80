"""Keys that one command accepts beside the key itself, such as `step=` of `runner.verify`."""

from __future__ import annotations

from dataclasses import dataclass

from runner.errors import invalid


@dataclass(frozen=True)
class _ShortKey:
    """A key that one command accepts beside the key itself.

    Attributes:
      key: the key itself.
      module: the command.
      elsewhere: what to type in another command.
    """

    key: str
    module: str
    elsewhere: str


_SHORT_KEYS = {
    "prompt": _ShortKey("generate.prompt", "runner.generate", "set task.sample.prompt or evaluate.prompt"),
    "devices": _ShortKey("advise.devices", "runner.advise", "set mesh=batch8, or another mesh"),
    "step": _ShortKey("replay.step", "runner.verify", "set trainer.steps=100, or name a checkpoint: run=latest@100"),
    "against": _ShortKey("replay.against", "runner.verify", "set run=latest, or resume=latest to continue a run"),
}


def typed_argument(text: str, module: str) -> str:
    """Returns an override of a command line with the full name of its key.

    Args:
      text: the override.
      module: of the command, such as `runner.generate`.

    Raises:
      ConfigError: the key is short for one that only another command reads, so it would be ignored.

    Example:
      >>> typed_argument("prompt=Once", "runner.generate")
      'generate.prompt=Once'
    """
    key, _, value = text.partition("=")
    name = key.lstrip("+~")
    short = _SHORT_KEYS.get(name)
    if short is None:
        return text
    if short.module != module:
        problem = f"only python -m {short.module} has this key"
        raise invalid(name, value, problem=problem, fix=short.elsewhere)
    return text.replace(name, short.key, 1)
