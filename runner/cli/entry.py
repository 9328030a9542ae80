"""Where every command starts: signals are heard before anything that takes time is imported.

Only commands import this module, as their first. Until `runner.host.signals` takes over there is nothing to lose, and
a signal ends the process at once.
"""

from __future__ import annotations

# Built into the interpreter: `signal` itself takes milliseconds, in which Ctrl-C would be a traceback.
import _signal  # type: ignore[import-not-found]
import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def _end(signum: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


for _name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
    if hasattr(_signal, _name) and _signal.getsignal(getattr(_signal, _name)) != _signal.SIG_IGN:
        _signal.signal(getattr(_signal, _name), _end)


def _open_streams() -> None:
    """Opens on the null device each standard stream that the caller closed (`>&-`).

    Python has None in its place, which fails at the first `sys.stdout.flush()`, and the next file that is opened gets
    the stream's number, so that native code prints into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        handle = os.open(os.devnull, os.O_RDWR)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)
        os.set_inheritable(number, True)
        # Its number belongs to the process until the end, as that of any standard stream does.
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _check_folder() -> None:
    """Ends a command that was started in a folder that has been removed: every path of it is relative to that."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib takes milliseconds, see above
    except OSError as error:
        line = f"error: the current directory can't be used ({error.strerror}); change to one that is there with cd\n"
        os.write(2, line.encode(errors="replace"))
        sys.exit(2)


def main(module: str, after: str | None = None) -> NoReturn:
    """Composes the config, runs a command on it and exits with its code.

    Args:
      module: has the command, `run(config, composed)`; imported when the config has been checked.
      after: has `end(code)`, called when all is done, which returns the code to exit with; null: nothing is done.
    """

    def body() -> int:
        code: int = import_module("runner.cli.app").run_module(module)
        return import_module(after).end(code) if after else code

    start(body)


def start(body: Callable[[], int]) -> NoReturn:
    """Runs a command that takes no config, or prints versions; see `runner.host.signals.run_main`."""
    _open_streams()
    if "--version" in sys.argv[1:]:
        body = import_module("runner.host.commands").print_versions
    else:
        _check_folder()
    run_main: Callable[[Callable[[], int]], NoReturn] = import_module("runner.host.signals").run_main
    run_main(body)
