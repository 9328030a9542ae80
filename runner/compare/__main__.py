"""The compare command: `python -m runner.compare --sweep latest`."""

from __future__ import annotations

from runner.cli import entry


def _main() -> int:
    from runner.compare.command import main

    return main()


if __name__ == "__main__":
    entry.start(_main)
