"""Command-line parser of commands without a config: `--key value` or `key=value`, with errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import commands


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError` and reads `key=value` as `--key=value`."""

    def __init__(self, module: str, description: str, examples: Sequence[str]) -> None:
        """Makes a parser without arguments.

        Args:
          module: the command, such as `runner.runs`.
          description: the description of the command, in one sentence.
          examples: arguments of the command, one command line each.
        """
        lines = [f"  python -m {module} {arguments}" for arguments in examples]
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            epilog="\n".join(["examples:", *lines, "", "commands:", commands.listed()]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--version", action="store_true", help="versions of this package and of the libraries")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses a command line.

        Args:
          arguments: as typed, without the program.

        Raises:
          ConfigError: an unknown flag, or a value that can't be read; one line.
        """
        options, unknown = self.parse_known_args(self._as_flags(arguments))
        if unknown:
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            name = unknown[0].partition("=")[0]
            # `_as_flags` added the dashes if the word is not among the arguments as they were typed.
            typed = name if unknown[0] in arguments else name.removeprefix("--")
            fix = did_you_mean(name, known, f"see {self.prog} --help")
            raise ConfigError(f"{typed}: unknown flag; flags are {', '.join(known)}; {fix}")
        return options

    def _as_flags(self, arguments: Sequence[str]) -> list[str]:
        """Returns the arguments with `key=value` as `--key=value`; a flag's own value may have an equals sign."""
        value_counts: dict[str, int | str] = {}
        for action in self._actions:
            for name in action.option_strings:
                value_counts[name] = 1 if action.nargs is None else action.nargs
        flags = []
        # How many of the next arguments are values of the flag before them.
        expected_values = 0
        for argument in arguments:
            is_key = not expected_values and not argument.startswith("-") and "=" in argument
            flags.append(f"--{argument}" if is_key else argument)
            count = value_counts.get(argument, max(expected_values - 1, 0))
            expected_values = count if isinstance(count, int) else 0
        return flags

    def error(self, message: str) -> NoReturn:
        """Reports an invalid value.

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
        raise invalid(key, text, problem="must be true or false", fix=f"set {key}=true")
    return text.lower() == "true"
