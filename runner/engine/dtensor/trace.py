"""Traces of TensorFlow's operations.

An XSpace for TensorBoard, and the same as JSON for Perfetto.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

_XSPACE = ".xplane.pb"
_JSON = ".trace.json.gz"


@contextmanager
def trace(folder: Path) -> Iterator[None]:
    """Traces TensorFlow's operations within the context.

    Args:
      folder: gets `plugins/profile/<time>/<host>.xplane.pb`, and a `.trace.json.gz` next to it.
    """
    tf.profiler.experimental.start(str(folder))
    try:
        yield
    finally:
        tf.profiler.experimental.stop()
        for path in folder.rglob(f"*{_XSPACE}"):
            _write_json(path, path.with_name(path.name.removesuffix(_XSPACE) + _JSON))


def _write_json(source: Path, target: Path) -> None:
    """Writes an XSpace in the Trace Event Format.

    Each plane is a process, each line a thread.
    """
    space = xplane_pb2.XSpace.FromString(source.read_bytes())
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(space.planes):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}})
        for thread, line in enumerate(plane.lines):
            name = line.display_name or line.name
            events.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}})
            for event in line.events:
                metadata = plane.event_metadata[event.metadata_id]
                events.append(
                    {
                        "ph": "X",
                        "pid": process,
                        "tid": thread,
                        "name": metadata.display_name or metadata.name,
                        # The format counts in microseconds.
                        "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                        "dur": event.duration_ps / 1e6,
                    }
                )
    with gzip.open(target, "wt") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)
