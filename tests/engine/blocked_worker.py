"""Runs the train command where some packages can't be found, as if they were not installed.

Usage: python -m tests.engine.blocked_worker PACKAGES OVERRIDES...; says at the end which heavy packages were loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HEAVY = ("tensorflow", "tf_keras", "jax", "keras", "mlflow", "torch")


class Blocker(MetaPathFinder):
    """Hides packages from the finder of installed ones."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds what the path holds, but for the blocked packages."""
        if fullname.partition(".")[0] in self._names:
            return None
        return PathFinder.find_spec(fullname, path, target)


def main() -> None:
    """Replaces the finder of installed packages, then runs the command."""
    blocked = sys.argv[1].split(",")
    sys.meta_path[:] = [Blocker(blocked) if finder is PathFinder else finder for finder in sys.meta_path]
    # Editable installs of the blocked packages would have finders of their own.
    sys.argv = ["runner", *sys.argv[2:]]
    from runner.__main__ import main as train

    try:
        train()
    finally:
        print("loaded:", ",".join(name for name in HEAVY if name in sys.modules))


if __name__ == "__main__":
    main()
