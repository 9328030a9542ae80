"""Two machines, as two network namespaces: a run that loses its network ends, and goes on as if it never had."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.training.checkpoint import storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.metric_history import from_arrays
from tests import forks
from tests.processes.machines import ADDRESSES, INTERFACE, PORT, Machines, listening, two_machines
from tests.processes.started import ROOT, WITHIN_S, until
from tests.stores import store_in

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS_AN_EPOCH, EVERY_STEPS = 22, 20
LONG_S = 150.0  # for a start on a machine whose cores are taken
SHARED = [
    *("engine=jax", "dataset=digits", "mesh=batch2", "trainer.steps_per_call=10", "trainer.progress=none"),
    *("trainer.log_model=false", f"trainer.checkpoint.every_steps={EVERY_STEPS}"),
]
CLUSTER = ["cluster=explicit", "cluster.processes=2", f"cluster.coordinator={ADDRESSES[0]}:{PORT}"]


@dataclass(frozen=True)
class Ends:
    """How the processes of a run ended.

    Attributes:
      codes: exit codes, by process.
      lines: of stderr, likewise.
      seconds: from the moment of interest to the last end.
    """

    codes: list[int]
    lines: list[list[str]]
    seconds: float


@dataclass(frozen=True)
class Story:
    """A run whose network was cut, and that went on; beside one that nothing happened to.

    Attributes:
      listened: addresses that the processes listened at, by process.
      cut: how they ended, from when the cable was pulled.
      cut_status: what the store said of the run then.
      resumed: how they ended when they went on.
      folder: with the folders `two` and `one` of the run and of that of one process.
    """

    listened: list[set[str]]
    cut: Ends
    cut_status: str
    resumed: Ends
    folder: Path


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("HYDRA_FULL_ERROR", "MLFLOW_TRACKING_URI")}
    return kept | {"PYTHONPATH": str(ROOT)}


def _places(folder: Path, name: str) -> list[str]:
    return [
        *(f"hydra.run.dir={folder / name}", f"trainer.checkpoint.folder={folder / 'checkpoints'}"),
        f"tracking.uri={store_in(folder)}",
    ]


def _start(machines: Machines, library: str, folder: Path, name: str, *arguments: str) -> list[forks.Popen]:
    line = [*CLUSTER, *_places(folder, name), *arguments]
    return [
        machines.start(index, [*line, f"cluster.index={index}"], folder / f"output_{name}", _environment(), library)
        for index in (0, 1)
    ]


def _ends(processes: list[forks.Popen], outputs: Path, within: float) -> Ends:
    began = time.monotonic()
    try:
        codes = [process.wait(max(0.1, began + within - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [(outputs / f"err{index}").read_text().splitlines() for index in (0, 1)]
    return Ends(codes, lines, time.monotonic() - began)


def _last_step(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoints/*/step-*[0-9]")), default=0)


def _status(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        ((status,),) = store.execute("SELECT status FROM runs").fetchall()
        return str(status)


def _tell(folder: Path) -> Story:
    """Trains on two machines, pulls the cable, goes on; and trains the same on one."""
    two, one, library = folder / "two", folder / "one", forks.JAX
    for each in (two, one):
        each.mkdir(parents=True)
    with two_machines("j") as machines:
        told = [*SHARED, "trainer.epochs=100000", f"cluster.interface={INTERFACE}"]
        processes = _start(machines, library, two, "first", *told)
        try:
            until(lambda: _last_step(two) > 0 or any(each.poll() is not None for each in processes), LONG_S)
            listened = [listening(each.pid) for each in processes]
            machines.link("down")
            cut = _ends(processes, two / "output_first", 2 * WITHIN_S)
        finally:
            for each in processes:
                each.kill()
        status = _status(two)
        epochs = _last_step(two) // STEPS_AN_EPOCH + 2
        whole = [*SHARED, f"trainer.epochs={epochs}", *_places(one, "run")]
        machines.link("up")
        again = _start(machines, library, two, "again", "resume=latest", f"trainer.epochs={epochs}")
        with ThreadPoolExecutor() as pool:
            resumed = pool.submit(_ends, again, two / "output_again", LONG_S)
            forks.run([sys.executable, "-m", "runner", *whole], timeout=LONG_S, check=True, env=_environment())
            return Story(listened, cut, status, resumed.result(), folder)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with two_machines("t"):
        pass  # or all is skipped, here
    return _tell(tmp_path_factory.mktemp("story"))


def test_both_machines_end_within_30_s_in_one_line_each_when_the_link_is_down(story: Story) -> None:
    assert story.cut.seconds < WITHIN_S
    assert story.cut.codes == [1, 1]
    (first,), (second,) = story.cut.lines
    assert first.startswith("error: process 1 (")
    assert first.endswith(") has not answered for 15 s")
    assert second == "error: process 0 has not answered for 15 s"
    assert story.cut_status == "FAILED"


def test_only_the_network_that_leads_to_the_other_machine_is_listened_at(story: Story) -> None:
    assert story.listened[0] == {ADDRESSES[0]}
    assert story.listened[1] <= {ADDRESSES[1], "127.0.0.1"}  # JAX's relay, which the process itself asks


def test_when_it_is_up_again_the_run_ends_as_one_that_was_never_interrupted(story: Story) -> None:
    assert story.resumed.codes == [0, 0], story.resumed.lines
    checkpoints = [_last(story.folder / name) for name in ("two", "one")]
    two, one = checkpoints
    assert two.step == one.step > EVERY_STEPS
    assert set(two) == set(one)
    for path in one:
        np.testing.assert_array_equal(two[path], one[path], err_msg=path)
    pasts = [from_arrays(found.history()) for found in checkpoints]
    assert pasts[0].train == pasts[1].train
    assert [step for step, _ in pasts[0].evaluations] == [step for step, _ in pasts[1].evaluations]
    points = [_points(story.folder / name) for name in ("two", "one")]
    assert points[0] == points[1]
    assert len(points[0]) == len(set(points[0])) > 10, "no point is there twice"
    assert _status(story.folder / "two") == "FINISHED"


def _last(folder: Path) -> Checkpoint:
    (held,) = (path.parent for path in folder.glob("checkpoints/*/run.json"))
    return Checkpoint(storage.place(held, storage.steps(held)[-1]))


def _points(folder: Path) -> list[tuple[str, int, float]]:
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        named = "key LIKE 'train/%' OR key LIKE 'eval/%' OR key = 'learning_rate'"
        return sorted(store.execute(f"SELECT key, step, value FROM metrics WHERE {named}").fetchall())
