"""Entry point of every command: signal handlers first, then everything that takes time to import.

Only commands import this module, as their first. Until `runner.cluster.exiting` installs its handlers there is nothing
to save, and a signal ends the process at once.
"""

from __future__ import annotations

# Built into the interpreter: `signal` itself takes milliseconds to import, in which Ctrl-C would be a traceback.
import _signal  # type: ignore[import-not-found]
import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def _end(signum: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


for _name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
    if hasattr(_signal, _name) and _signal.getsignal(getattr(_signal, _name)) != _signal.SIG_IGN:
        _signal.signal(getattr(_signal, _name), _end)


def _open_streams() -> None:
    """Opens the null device for each standard stream that the caller closed (`>&-`).

    Otherwise `sys.stdout` is None, and the next file that is opened gets the stream's number, the lowest free one, so
    that native code prints into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - pathlib is slow to import


def _check_folder() -> None:
    """Ends a command that was started in a removed folder: all its paths are relative to that."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib takes milliseconds to import
    except OSError as error:
        line = f"error: the current directory can't be used ({error.strerror}); change to one that is there with cd\n"
        os.write(2, line.encode(errors="replace"))
        sys.exit(2)


def main_of_words() -> NoReturn:
    """Runs the command that the first argument names, as `python -m runner.<command>`; trains if it names none."""
    word = ""
    if len(sys.argv) > 1:
        word = sys.argv[1]
    if word.isalpha() and word in import_module("runner.cli.commands").commands():
        del sys.argv[1]
        if word != "train":
            import_module("runpy").run_module(f"runner.{word}", run_name="__main__", alter_sys=True)
    main("runner.cli.train")


def main(command: str) -> NoReturn:
    """Composes the config, runs `run(config, composed)` of a command's module on it and exits with its code."""
    call("runner.cli.app", "run_command", command)


def main_without_config(module: str) -> NoReturn:
    """Runs `main(arguments)` of a module, a command that takes no config, and exits with its code."""
    call("runner.cli.commands", "run", module, sys.argv[1:])


def call(module: str, function: str, *arguments: object) -> NoReturn:
    """Exits with the code that a function returns; its module is imported when the signals have handlers."""
    _open_streams()
    own = sys.argv[1:]
    if "--" in own:  # before another command
        own = own[: own.index("--")]
    if "--version" in own:
        _exit_with("runner.cli.commands", "print_versions")
    if not {"-h", "--help"}.isdisjoint(own):
        _exit_with("runner.cli.commands", "run", "runner.cli.help", own)
    _check_folder()
    _exit_with(module, function, *arguments)


def _exit_with(module: str, function: str, *arguments: object) -> NoReturn:
    with import_module("runner.cluster.exiting").exiting() as codes:
        codes.append(getattr(import_module(module), function)(*arguments))
    raise AssertionError("the context exits")
