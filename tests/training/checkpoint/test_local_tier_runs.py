"""Two processes with a fast folder each are killed, and go on as if they never had been."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.processes.launch import free_port
from runner.training.checkpoint import storage
from runner.training.checkpoint.manifest import NAME
from runner.training.checkpoint.reading import Checkpoint, read_manifest
from runner.training.metric_history import from_arrays
from tests import forks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LIBRARIES = {"jax": forks.JAX, "keras_dtensor": forks.TENSORFLOW}
WITHIN_S = 240.0
# Steps of an epoch, at whose end the run's own folder gets a checkpoint.
EPOCH = 179
LINE = (
    *("dataset=digits", "dataset.batch_size=8", "model=mlp", "model.hidden=[32]", "mesh=batch2", "trainer.epochs=3"),
    *("trainer.steps_per_call=1", "trainer.progress=none", "tracking=none", "resume=auto", "name=exp1"),
    *("trainer.checkpoint.every_minutes=60", "trainer.checkpoint.fast_every_minutes=0.001", "cluster=explicit"),
    "cluster.processes=2",
)


@dataclass(frozen=True)
class Two:
    """A run of two processes, each with a fast folder of its own.

    Attributes:
      root: of all its folders.
      engine: of the run.
      layout: of the run.
    """

    root: Path
    engine: str
    layout: str

    @property
    def own(self) -> Path:
        """The run's own checkpoints."""
        return self.root / "own" / "exp1"

    def fast(self, index: int) -> Path:
        """The fast checkpoints of a process."""
        return self.root / f"fast{index}" / "exp1"

    def place(self, index: int, step: int) -> Path:
        """The folder of a fast checkpoint."""
        return Path(str(storage.place(self.fast(index), step)))

    def fast_steps(self, index: int) -> list[int]:
        """The steps that a process has in its fast folder, by their manifests."""
        return [step for step in storage.steps(self.fast(index)) if (self.place(index, step) / NAME).exists()]

    def start(self, name: str) -> list[subprocess.Popen[bytes]]:
        """Starts both processes; their output goes to files."""
        port = free_port()
        started: list[subprocess.Popen[bytes]] = []
        for index in (0, 1):
            command = [
                *(sys.executable, "-m", "runner", *LINE, f"engine={self.engine}", f"layout={self.layout}"),
                *(f"cluster.index={index}", f"cluster.coordinator=127.0.0.1:{port}"),
                f"trainer.checkpoint.folder={self.root}/own",
                f"trainer.checkpoint.fast_folder={self.root}/fast{index}",
                f"hydra.run.dir={self.root}/run-{name}",
            ]
            with (self.root / f"{name}{index}").open("wb") as out:
                started.append(
                    forks.Popen(
                        command,
                        cwd=self.root,
                        env=os.environ,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        library=LIBRARIES[self.engine],
                    )
                )
        return started

    def output(self, name: str, index: int = 0) -> str:
        return (self.root / f"{name}{index}").read_text()

    def finish(self, name: str) -> str:
        """Runs both processes to the end; returns what process 0 said."""
        processes = self.start(name)
        try:
            codes = [process.wait(WITHIN_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0, 0], self.output(name) + self.output(name, 1)
        return self.output(name)

    def kill(self, name: str, after: int) -> None:
        """Starts both processes, and kills them when both have saved a later step than that."""
        processes = self.start(name)
        deadline = time.monotonic() + WITHIN_S
        try:
            while min(max(self.fast_steps(index), default=0) for index in (0, 1)) <= after:
                assert time.monotonic() < deadline
                assert [process.poll() for process in processes] == [None, None], self.output(name)
                time.sleep(0.02)
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.wait()

    def common(self) -> int:
        """The newest step that both fast folders have of one save."""
        saves: list[set[tuple[int, str]]] = []
        for index in (0, 1):
            found = {step: read_manifest(self.place(index, step)).about for step in self.fast_steps(index)}
            saves.append({(step, about["slices"]["save"]) for step, about in found.items()})
        return max(step for step, _ in saves[0] & saves[1])

    def copied(self, root: Path) -> Two:
        """Returns the same run in another folder."""
        shutil.copytree(self.root, root)
        return Two(root, self.engine, self.layout)

    def check_ended_as(self, whole: Two) -> None:
        """Compares the last checkpoint with that of a run that nothing happened to."""
        assert [self.fast_steps(index) for index in (0, 1)] == [[], []], "the end is in the run's own folder"
        ended, expected = self.last(), whole.last()
        assert ended.step == expected.step == 3 * EPOCH
        assert set(ended) == set(expected)
        for path in expected:
            np.testing.assert_array_equal(ended[path], expected[path], err_msg=path)
        histories = from_arrays(ended.history()), from_arrays(expected.history())
        assert histories[0].train == histories[1].train
        assert histories[0].epochs == histories[1].epochs
        evaluations = [[(step, found.metrics) for step, found in history.evaluations] for history in histories]
        assert evaluations[0] == evaluations[1]
        assert len(evaluations[0]) == 3

    def last(self) -> Checkpoint:
        return Checkpoint(storage.place(self.own, storage.steps(self.own)[-1]))


def resumed_at(output: str) -> int:
    """Returns the step that a run says it resumes at."""
    found = re.search(r"Resuming run exp1 at step ([\d,]+)", output)
    assert found is not None, output
    return int(found[1].replace(",", ""))


def killed_run(folder: Path, engine: str, layout: str) -> Mapping[str, Two]:
    """A run that nothing happened to, and one that was killed in its second epoch."""
    both = {name: Two(folder / name, engine, layout) for name in ("whole", "killed")}
    for two in both.values():
        two.root.mkdir()
    both["whole"].finish("whole")
    both["killed"].kill("first", EPOCH)
    return both


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Two]:
    return killed_run(tmp_path_factory.mktemp("sharded"), "jax", "fsdp")


def check_goes_on(two: Two, whole: Two) -> None:
    """Resumes a run, and compares its end."""
    common = two.common()
    assert EPOCH < common < 2 * EPOCH
    for index in (0, 1):
        assert any(part.stat().st_size for part in two.fast(index).rglob("arrays-*")), "each writes what it needs"
    output = two.finish("second")
    assert resumed_at(output) == common
    assert "fast folder" not in output
    two.check_ended_as(whole)


def test_sharded_by_jax_it_goes_on_from_the_newest_step(sharded: Mapping[str, Two], tmp_path: Path) -> None:
    check_goes_on(sharded["killed"].copied(tmp_path / "two"), sharded["whole"])


def test_it_goes_on_from_the_newest_step(tmp_path: Path) -> None:
    both = killed_run(tmp_path, "jax", "replicated")
    check_goes_on(both["killed"], both["whole"])


def test_if_one_disk_is_lost_it_goes_on_from_its_own_folder(sharded: Mapping[str, Two], tmp_path: Path) -> None:
    two = sharded["killed"].copied(tmp_path / "two")
    shutil.rmtree(two.fast(1))
    output = two.finish("second")
    assert resumed_at(output) == EPOCH
    [line] = [line for line in output.splitlines() if "fast folders have no checkpoint in common" in line]
    assert line.endswith(f"process 1: none); continuing from step {EPOCH}")
    two.check_ended_as(sharded["whole"])


@pytest.mark.parametrize("damage", ["missing", "corrupted"])
def test_if_one_disk_lacks_the_last_save_it_goes_on_from_the_one_before(
    damage: str, sharded: Mapping[str, Two], tmp_path: Path
) -> None:
    """As when the processes die after one machine has written its manifest, and before the other has."""
    two = sharded["killed"].copied(tmp_path / "two")
    before = two.common()
    kept = [shutil.copytree(two.place(index, before), tmp_path / f"kept{index}") for index in (0, 1)]
    two.kill("second", before)
    last = two.common()
    assert before < last < 2 * EPOCH
    for index in (0, 1):
        if not two.place(index, before).exists():
            kept[index].rename(two.place(index, before))
    file = two.place(1, last) / "arrays-00000.safetensors"
    if damage == "missing":
        shutil.rmtree(file.parent)
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(bytes(content))
    output = two.finish("third")
    assert resumed_at(output) == before
    lines = [line for line in output.splitlines() if str(file) in line]
    assert len(lines) == (damage == "corrupted")
    two.check_ended_as(sharded["whole"])
