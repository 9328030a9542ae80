"""A training run's bare bones, for tests that need it in a process of its own: URI, root, how to end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runner.config.schema import TrackingConfig
from runner.tracking import RunSpec, open_tracker


def main(uri: str, root: str, end: str) -> None:
    config = TrackingConfig(uri=uri, experiment="tests")
    tracker = open_tracker(config, RunSpec(end, {"a": 1}), Path(root), root=Path(root))
    for step in range(10):
        tracker.log_metrics(step, {"loss": float(step)})
    if end == "die":
        tracker.flush(30)
        os._exit(9)
    if end != "leave":
        tracker.finish("FINISHED")


if __name__ == "__main__":
    main(*sys.argv[1:])
