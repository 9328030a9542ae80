"""Where every command starts: signals are heard before anything that takes time is imported.

Only commands import this module, as their first. Until `runner.host.signals` takes over there is nothing to lose, and
a signal ends the process at once.
"""

from __future__ import annotations

# Built into the interpreter: `signal` itself takes milliseconds, in which Ctrl-C would be a traceback.
import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from runner.cli.app import Command


def _end(signum: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


for _name in ("SIGINT", "SIGTERM", "SIGHUP"):
    if hasattr(_signal, _name) and _signal.getsignal(getattr(_signal, _name)) != _signal.SIG_IGN:
        _signal.signal(getattr(_signal, _name), _end)


def main(command: Command, after: Callable[[int], int] = int) -> NoReturn:
    """Composes the config, runs a command on it and exits with its code.

    Args:
      command: see `runner.cli.app.run_command`.
      after: takes the exit code when all is done, and returns the one to exit with.
    """

    def body() -> int:
        from runner.cli.app import run_command

        return after(run_command(command))

    start(body)


def start(body: Callable[[], int]) -> NoReturn:
    """Runs a command that takes no config; see `runner.host.signals.run_main`."""
    from runner.host.signals import run_main

    run_main(body)
