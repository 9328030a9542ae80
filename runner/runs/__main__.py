"""The runs command: `python -m runner.runs clean older=30d`."""

from __future__ import annotations

from runner.cli import entry


def _main() -> int:
    from runner.runs.command import main

    return main()


if __name__ == "__main__":
    entry.start(_main)
