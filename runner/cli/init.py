"""Writes a project's folder from the files of `template`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.errors import EXIT_DONE, ConfigError

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "my_project"  # in the template, where the project's own name goes
# git would apply a .gitignore in the template to the template itself.
_RENAMED = {"gitignore": ".gitignore"}
_USABLE = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)


def main(arguments: Sequence[str]) -> int:
    """Writes the project that the command line names, and prints how to run it; raises as `write` does."""
    typed = ""
    if len(arguments) == 1:
        typed = arguments[0]
    written = write(typed)
    print(f"{typed}: {', '.join(written)}\n\nrun it:")
    for line in (f"cd {shlex.quote(typed)}", "python -m runner experiment=mine", "python -m pytest"):
        print(f"  {line}")
    return EXIT_DONE


def write(typed: str) -> list[str]:
    """Writes a project into a folder, new or empty; returns the files' names, relative to it; raises ConfigError."""
    folder = Path(typed)
    # As it was typed, also of `.`: Path.resolve() would follow links.
    name = Path(os.path.abspath(folder)).name  # noqa: PTH100
    if not typed.strip() or not _USABLE.fullmatch(name):
        problem = "must be one new folder, of letters, digits, '_', '-' and '.', and no '-' or '.' first"
        raise ConfigError(f"{typed!r}: {problem}; write python -m runner.init {_NAME}")
    module_name = re.sub(r"\W", "_", name, flags=re.ASCII)
    written: list[str] = []
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder}: has files already; name a new folder, or an empty one")
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(_TEMPLATE.rglob("*")):
            if not path.is_file() or path.suffix == ".pyc":
                continue
            inner = path.relative_to(_TEMPLATE)
            target = folder / inner.with_name(_RENAMED.get(inner.name, inner.name).replace(_NAME, module_name))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text(encoding="utf-8").replace(_NAME, name), encoding="utf-8")
            written.append(target.relative_to(folder).as_posix())
    except OSError as error:
        raise ConfigError(f"{folder}: can't be written ({error.strerror}); name another folder") from error
    return written
