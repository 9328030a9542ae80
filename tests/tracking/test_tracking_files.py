"""What TensorBoard's and W&B's files have of a run, and what happens if one of them fails."""

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from runner.config.schema import TrackingConfig
from runner.tracking import RunSpec, open_tracker

SPEC = RunSpec("mlp", {"mesh": "batch=2"}, config={"mesh.axes.batch": 2}, identity="first-3c1db029")


def logged(root: Path, config: TrackingConfig, *points: tuple[int, float]) -> Any:
    """Returns the tracker of a run that logged the points and ended."""
    (root / "run").mkdir(exist_ok=True)
    tracker = open_tracker(config, SPEC, root / "run", root=root)
    for step, value in points:
        tracker.log_metrics(step, {"eval/loss": value})
    tracker.set_tags({"runner.ended": "trained for 2 epochs", "mlflow.figure.plan/bytes_per_device": "153760"})
    assert tracker.finish("FINISHED")
    return tracker


def events(folder: Path) -> list[tuple[int, float]]:
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:
            # Each event has its length before it (and a checksum of that), and a checksum after it.
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.HasField("session_log"):
                found = [point for point in found if point[0] < event.step]
            found += [(event.step, v.simple_value) for v in event.summary.value if v.tag == "eval/loss"]
    return found


def test_a_resumed_runs_events_replace_those_of_its_history_without_mlflow(tmp_path: Path) -> None:
    config = TrackingConfig(writers=["tensorboard"])
    assert logged(tmp_path, config, (1, 0.5)).describe() == [
        f"view with: tensorboard --logdir {tmp_path}/outputs/tensorboard"
    ]
    logged(tmp_path, config, (1, 0.5), (2, 0.25))
    assert events(tmp_path / "outputs" / "tensorboard" / "mlp-3c1db029") == [(1, 0.5), (2, 0.25)]


def test_a_writer_that_fails_costs_the_others_nothing(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tensorboardX.SummaryWriter.add_scalar", lambda *_, **__: 1 / 0)
    tracker = logged(tmp_path, TrackingConfig(uri=uri, writers=["mlflow", "tensorboard"]), (1, 0.5), (2, 0.25))
    run = MlflowClient(uri).get_run(tracker.run_id)
    assert (run.data.metrics, run.info.status) == ({"eval/loss": 0.25}, "FINISHED")
    assert capsys.readouterr().err.count("failed, and gets no more records: division by zero") == 1


@pytest.mark.nightly
def test_wandb_is_offline_and_has_points_config_and_figures(tmp_path: Path) -> None:
    program = f"import tests.tracking.test_tracking_files as t; t.wandb({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    (file,) = tmp_path.glob("outputs/wandb/offline-run-*/*.wandb")
    assert done.stdout.strip() == f"upload with: wandb sync {file.parent}"
    content = file.read_bytes()
    for text in (b"eval/loss", b"0.125", b"mesh.axes.batch", b"plan/bytes_per_device", b"trained for 2 epochs"):
        assert text in content


def wandb(root: str) -> None:
    print(*logged(Path(root), TrackingConfig(writers=["wandb"]), (1, 0.125)).describe())
