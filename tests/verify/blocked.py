"""`runner.verify`, or its process, where $BLOCKED's packages can't be found, as if they were not installed.

Usage: python -m tests.verify.blocked OVERRIDES..., or FOLDER as the command's own process is called. Says at
the end which heavy packages were loaded.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from omegaconf import DictConfig

from runner.cli.app import run_command
from runner.config.schema import RunConfig
from tests.engine.blocked_worker import HEAVY, Blocker


def command(config: RunConfig, composed: DictConfig) -> None:
    from runner.verify import record

    record.WORKER = "tests.verify.blocked"
    record.run(config, composed)


def main() -> int:
    blocked = Blocker(os.environ["BLOCKED"].split(","))
    sys.meta_path[:] = [blocked if finder is PathFinder else finder for finder in sys.meta_path]
    try:
        if "=" not in sys.argv[1]:
            from runner.verify import worker

            worker.main()
            return 0
        return run_command(command)
    finally:
        print("loaded:", ",".join(name for name in HEAVY if name in sys.modules))


if __name__ == "__main__":
    sys.exit(main())
