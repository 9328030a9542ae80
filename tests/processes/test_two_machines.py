"""Two machines, as two network namespaces: a run that loses its network ends within 30 s."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests import forks
from tests.processes.machines import ADDRESSES, PORT, listening, two_machines
from tests.processes.started import ROOT, WITHIN_S, until
from tests.stores import store_in

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LONG_S = 150.0  # for a start on a machine whose cores are taken
SHARED = [
    *("engine=jax", "dataset=digits", "mesh=batch2", "trainer.steps_per_call=10", "trainer.progress=none"),
    *("trainer.log_model=false", "trainer.checkpoint.every_steps=20"),
]
CLUSTER = ["cluster=explicit", "cluster.processes=2", f"cluster.coordinator={ADDRESSES[0]}:{PORT}"]


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("HYDRA_FULL_ERROR", "MLFLOW_TRACKING_URI")}
    return kept | {"PYTHONPATH": str(ROOT)}


def test_both_machines_end_in_one_line_each_when_the_link_is_down_and_listen_at_it_alone(tmp_path: Path) -> None:
    line = [
        *(*SHARED, *CLUSTER, "trainer.epochs=100000"),
        *(f"hydra.run.dir={tmp_path / 'run'}", f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"),
        f"tracking.uri={store_in(tmp_path)}",
    ]
    with two_machines("j") as machines:
        processes = [
            machines.start(index, [*line, f"cluster.index={index}"], tmp_path / "out", _environment(), forks.JAX)
            for index in (0, 1)
        ]
        try:
            until(lambda: any(tmp_path.glob("checkpoints/*/step-*")) or processes[0].poll() is not None, LONG_S)
            listened = [listening(each.pid) for each in processes]
            machines.link("down")
            began = time.monotonic()
            codes = [each.wait(2 * WITHIN_S) for each in processes]
            seconds = time.monotonic() - began
        finally:
            for each in processes:
                each.kill()
                each.wait()
    (first,), (second,) = ((tmp_path / "out" / f"err{index}").read_text().splitlines() for index in (0, 1))
    assert codes == [1, 1]
    assert seconds < WITHIN_S
    assert first.startswith("error: process 1 (")
    assert first.endswith(") has not answered for 15 s")
    assert second == "error: process 0 has not answered for 15 s"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        assert store.execute("SELECT status FROM runs").fetchall() == [("FAILED",)]
    assert listened[0] == {ADDRESSES[0]}
    assert listened[1] <= {ADDRESSES[1], "127.0.0.1"}  # JAX's relay, which the process itself asks
