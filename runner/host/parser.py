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
        """Makes the parser of a command such as `runner.runs`, with examples of its arguments for its help."""
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
        """Parses a command line without the program; raises ConfigError, one line."""
        # A flag's own value may have an equals sign.
        with_value = {name for action in self._actions if action.nargs is None for name in action.option_strings}
        flags = []
        for before, argument in zip(["", *arguments], arguments, strict=False):
            is_key = before not in with_value and not argument.startswith("-") and "=" in argument
            flags.append(f"--{argument}" if is_key else argument)
        options, unknown = self.parse_known_args(flags)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            name = unknown[0].partition("=")[0]
            typed = name if unknown[0] in arguments else name.removeprefix("--")
            fix = did_you_mean(name, known, f"see {self.prog} --help")
            raise ConfigError(f"{typed}: unknown flag; flags are {', '.join(known)}; {fix}")
        return options

    def error(self, message: str) -> NoReturn:
        """Reports an invalid value by a ConfigError."""
        raise ConfigError(f"{' '.join(message.split())}; see {self.prog} --help")


def truth(key: str, text: str) -> bool:
    """Returns the value of a flag that may be written as `key=true`; raises ConfigError."""
    if text.lower() not in ("true", "false"):
        raise invalid(key, text, problem="must be true or false", fix=f"set {key}=true")
    return text.lower() == "true"
