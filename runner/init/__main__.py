"""The init command: `python -m runner.init my_project` writes a folder that runs at once."""

from __future__ import annotations

from runner.cli import entry


def _main() -> int:
    from runner.init.command import main

    return main()


if __name__ == "__main__":
    entry.start(_main)
