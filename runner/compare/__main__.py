"""The compare command: `python -m runner.compare --sweep latest`."""

from __future__ import annotations

from importlib import import_module


def _main() -> int:
    from runner.compare.command import main

    return main()


if __name__ == "__main__":
    # By name: sweeps import this folder and the command line imports sweeps, so an import would be a cycle of folders.
    import_module("runner.cli.entry").start(_main)
