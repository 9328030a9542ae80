"""Writes a project's folder from the files of `template`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.errors import EXIT_DONE, EXIT_REFUSED, ConfigError
from runner.host.commands import listed

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "my_project"  # in the template, for the project's own
_RENAMED = {"gitignore": ".gitignore"}  # which git would heed in the template too
_USABLE = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_USAGE = "usage: python -m runner.init <folder>"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the project that the command line names and says what to do with it.

    Args:
      arguments: null: the process's own.

    Returns:
      The process's exit code: 0 done, 2 refused.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["-h"], ["--help"]):
        what = "Writes a model, a dataset, a task, an experiment and a test of your own, which run at once."
        print(f"{_USAGE}\n\n{what}\n\ncommands:\n{listed()}")
        return EXIT_DONE
    try:
        folder = _folder(given)
        written = write(folder)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(f"{folder}: {', '.join(written)}")
    print("\nrun it:")
    for line in (f"cd {shlex.quote(str(folder))}", "python -m runner experiment=mine", "python -m pytest"):
        print(f"  {line}")
    return EXIT_DONE


def _folder(given: Sequence[str]) -> Path:
    if len(given) != 1 or given[0].startswith("-"):
        shown = " ".join(given) or "no name"
        raise ConfigError(f"{shown}: runner.init takes the name of one new folder; write {_USAGE[7:]}")
    folder = Path(given[0])
    name = Path(os.path.abspath(folder)).name  # noqa: PTH100 - resolve() would follow links
    if not given[0].strip() or not _USABLE.fullmatch(name):
        allowed = "a name has letters, digits, '_', '-' and '.', which every tool takes in a path, and no '.' first"
        raise ConfigError(f"{given[0]!r}: {allowed}; write python -m runner.init {_NAME}")
    return folder


def write(folder: Path) -> list[str]:
    """Writes a project.

    Args:
      folder: new, or empty.

    Returns:
      The files' names, from the folder.

    Raises:
      ConfigError: the folder holds something, or can't be written.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder}: it holds files already; name a new folder, or an empty one")
        folder.mkdir(parents=True, exist_ok=True)
        name, written = Path(os.path.abspath(folder)).name, []  # noqa: PTH100 - as it was given
        for path in sorted(one for one in _TEMPLATE.rglob("*") if one.is_file() and one.suffix != ".pyc"):
            inner = path.relative_to(_TEMPLATE)
            target = folder / inner.with_name(_RENAMED.get(inner.name, inner.name).replace(_NAME, _file_name(name)))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text(encoding="utf-8").replace(_NAME, name), encoding="utf-8")
            written.append(target.relative_to(folder).as_posix())
    except OSError as error:
        raise ConfigError(f"{folder}: it can't be written ({error.strerror}); name another") from error
    return written


def _file_name(name: str) -> str:
    """Returns a project's name as that of a Python file."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)
