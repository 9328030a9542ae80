"""The command line of a command that takes no config: `--key value` or `key=value`, and refusals of one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import commands


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are `ConfigError`s; `key=value` is read as `--key=value`."""

    def __init__(self, module: str, description: str, examples: Sequence[str]) -> None:
        """Makes a parser without arguments.

        Args:
          module: the command, as `runner.compare`.
          description: what it does, in a sentence.
          examples: command lines behind `python -m`.
        """
        lines = [f"  python -m {module} {one}" for one in examples]
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            epilog="\n".join(["examples:", *lines, "", "commands:", commands.listed()]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--version", action="store_true", help="versions of this package and of the libraries")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Returns what a command line says.

        Args:
          arguments: as typed, without the program.

        Raises:
          ConfigError: an unknown flag, or a value that can't be read; one line.
        """
        options, unknown = self.parse_known_args(self._as_flags(arguments))
        if unknown:
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            name = unknown[0].partition("=")[0]
            typed = name.removeprefix("--") if unknown[0] not in arguments else name
            fix = did_you_mean(name, known, f"see {self.prog} --help")
            raise ConfigError(f"{typed}: no such word; flags are {', '.join(known)}; {fix}")
        return options

    def _as_flags(self, arguments: Sequence[str]) -> list[str]:
        """Returns the words with `key=value` as `--key=value`; a flag's own value may hold an equals sign."""
        takes = {name: 1 if one.nargs is None else one.nargs for one in self._actions for name in one.option_strings}
        words = list[str]()
        values = 0
        for one in arguments:
            is_key = not values and not one.startswith("-") and "=" in one
            words.append(f"--{one}" if is_key else one)
            count = takes.get(one, max(values - 1, 0))
            values = count if isinstance(count, int) else 0
        return words

    def error(self, message: str) -> NoReturn:
        """Refuses a value.

        Raises:
          ConfigError: always.
        """
        raise ConfigError(f"{' '.join(message.split())}; see {self.prog} --help")


def truth(key: str, text: str) -> bool:
    """Returns the value of a flag that may be written as `key=true`.

    Raises:
      ConfigError: it is neither true nor false.
    """
    if text.lower() not in ("true", "false"):
        raise invalid(key, text, problem="true or false", fix=f"set {key}=true")
    return text.lower() == "true"
