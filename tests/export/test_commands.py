"""The real commands on one run: a digits model trained under megatron on four devices."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
      folder: everything lies in it.
      run_id: in the folder's store.
      framework: that its engine computes with.
    """

    folder: Path
    run_id: str
    framework: str = "tensorflow"

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def command(self, module: str, *overrides: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end and checks its exit code."""
        if not any(override.startswith("trainer.checkpoint.folder") for override in overrides):
            overrides = (*overrides, f"trainer.checkpoint.folder={self.checkpoints}")
        options = {"folder": self.folder, "code": code, "library": self.framework}
        return forks.python("-m", module, *overrides, **options, MLFLOW_TRACKING_URI=self.uri)  # type: ignore[arg-type]

    def recorded(self) -> Any:
        """Returns the client and the run."""
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        return client, client.get_run(self.run_id)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    overrides = ["dataset=digits", "mesh.axes={batch:2,model:2}", "layout=megatron", "trainer.epochs=2"]
    unnamed = Trained(folder, "")
    unnamed.command(
        "runner", *overrides, "trainer.log_model=false", "trainer.progress=none", f"hydra.run.dir={folder / 'run'}"
    )
    (saved,) = unnamed.checkpoints.iterdir()
    return Trained(folder, saved.name)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the only line of stderr."""
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.nightly
def test_evaluate_returns_the_metrics_of_training_and_adds_them_to_the_unchanged_run(trained: Trained) -> None:
    _, before = trained.recorded()
    out = trained.folder / "evaluated"
    done = trained.command("runner.evaluate", "run=latest", f"hydra.run.dir={out}")
    result = json.loads((out / "evaluate.json").read_text())
    summary = json.loads((trained.folder / "run" / "summary.json").read_text())
    assert result["loss"] == summary["eval_loss"]
    assert result["accuracy"] == summary["eval_accuracy"] > 0.8
    assert (result["examples"], result["step"], result["mesh"]) == (360, 44, "batch=2 model=2")
    assert sum(one["examples"] for one in result["tables"]["classes"]) == 360
    assert "precision" in done.stdout
    client, after = trained.recorded()
    assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)
    assert after.info.status == "FINISHED"
    (point,) = client.get_metric_history(trained.run_id, "evaluate/test/accuracy")
    assert (point.step, point.value) == (44, result["accuracy"])
    folder = "evaluate/test/step-000000044"
    artifacts = {item.path.removeprefix(f"{folder}/") for item in client.list_artifacts(trained.run_id, folder)}
    assert artifacts == {"config.yaml", "evaluate.json", "confusion.png", "wrong.png"}


@pytest.mark.nightly
def test_evaluate_accepts_another_mesh_and_split_and_records_nothing_untracked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*forks.REAL)
    out = trained.folder / "one_device"
    options = ["mesh=single", "layout=replicated", "dataset.test='test[:100]'", "tracking=none"]
    trained.command("runner.evaluate", f"run={trained.run_id[:8]}@best", *options, f"hydra.run.dir={out}")
    result = json.loads((out / "evaluate.json").read_text())
    assert (result["examples"], result["split"], result["mesh"]) == (100, "test[:100]", "batch=1")
    _, run = trained.recorded()
    assert not [key for key in run.data.metrics if key.startswith("evaluate/test_")]


@pytest.mark.nightly
def test_an_export_predicts_as_the_run_does_and_mlflow_serves_it(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*forks.REAL)
    _, before = trained.recorded()
    target = trained.folder / "exported"
    done = trained.command("runner.export", "run=latest", f"export.folder={target}")
    record = json.loads((target / "export.json").read_text())
    assert set(record["compared"]) == {"SavedModel", "model.keras"}
    assert record["examples"] == 360
    for found in record["compared"].values():
        assert found["class"]["largest"] == 0
        assert 0 < found["probabilities"]["scale"] <= 1
        for name in ("logits", "probabilities"):
            assert found[name]["largest"] <= 1e-5 * found[name]["scale"]
    assert {each.name for each in target.iterdir()} == {"saved_model", "model.keras", "export.json", "config.yaml"}
    client, after = trained.recorded()
    assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)
    assert str(target / "saved_model") in done.stdout
    (logged,) = (one for one in client.search_logged_models([after.info.experiment_id]) if one.name == "export")
    assert logged.source_run_id == trained.run_id
    assert f"models:/{logged.model_id}" in done.stdout
    answers = served(trained, logged.model_id)
    assert answers["equal"]
    assert answers["modules"] == [], "served without this package and without Keras"
    assert answers["names"] == {"outputs": [str(digit) for digit in range(10)]}
    assert answers["accuracy"] > 0.8


SERVE = """
import sys, json, mlflow, numpy as np, tensorflow as tf
sys.path = [path for path in sys.path if path != sys.argv[4]]
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(f"models:/{sys.argv[2]}")
with np.load(sys.argv[3]) as held:
    images, labels = held["images"], held["labels"]
answer = model.predict(images)
direct = tf.saved_model.load(sys.argv[5]).signatures["serving_default"](image=tf.constant(images))
print(json.dumps({
    "equal": all(np.array_equal(answer[name], direct[name].numpy()) for name in answer),
    "names": model.metadata.metadata["names"],
    "accuracy": float((answer["class"] == labels).mean()),
    "modules": [name for name in sys.modules if name.split(".")[0] in ("runner", "tf_keras")],
}))
"""


def served(trained: Trained, model_id: str) -> dict[str, Any]:
    """Loads the logged model in a process that knows nothing of this package, and predicts raw test images."""
    from runner.config.schema import DatasetConfig
    from runner.data import loading

    split = loading.load(DatasetConfig(name="digits")).test
    arrays = split.read(np.arange(split.size))
    np.savez(trained.folder / "raw.npz", images=arrays["image"], labels=arrays["label"])
    arguments = [trained.uri, model_id, str(trained.folder / "raw.npz"), str(ROOT)]
    arguments.append(str(trained.folder / "exported" / "saved_model"))
    return dict(forks.answer("-c", SERVE, *arguments, folder=trained.folder, PYTHONPATH=""))


@pytest.mark.nightly
def test_weight_averages_of_a_bfloat16_run_are_evaluated_resumed_and_exported(tmp_path: Path) -> None:
    run = Trained(tmp_path, "", "jax")
    options = ["engine=jax", "engine.precision=bfloat16", "mesh=batch2", "optimizer.ema.decay=0.95", "dataset=digits"]
    options += ["optimizer.learning_rate=0.03", "trainer.epochs=2", "tracking=none", "trainer.progress=none"]
    run.command("runner", *options, f"hydra.run.dir={tmp_path / 'run'}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    given = ["run=latest", "tracking=none"]
    run.command("runner.evaluate", *given, f"hydra.run.dir={tmp_path / 'evaluated'}")
    evaluated = json.loads((tmp_path / "evaluated" / "evaluate.json").read_text())
    assert evaluated["loss"] == summary["eval_loss"]
    run.command("runner.export", *given, f"export.folder={tmp_path / 'exported'}")
    for found in json.loads((tmp_path / "exported" / "export.json").read_text())["compared"].values():
        assert found["class"]["largest"] == 0
        assert found["probabilities"]["largest"] <= 1e-5, "in float32, whatever the layers computed in"
    more = ["resume=latest", "trainer.epochs=3"]
    error = run.command("runner", *more, "optimizer.ema.decay=null", code=2).stderr
    assert "was saved with another optimizer, this config does not have ema/d1/bias" in error
    error = run.command("runner", *more, "model.hidden=[16, 16]", code=2).stderr
    assert "was saved with another model, the checkpoint lacks d3/bias" in error
    run.command("runner", *more, f"hydra.run.dir={tmp_path / 'more'}")
    assert json.loads((tmp_path / "more" / "summary.json").read_text())["steps"] == 66


# Other runs and steps that are not there: tests/training/checkpoint/test_runs.py, and so is a damaged checkpoint,
# and one of another model tests/training/checkpoint/test_resumed_loop.py.
MISSING: list[list[str]] = [[], ["resume=latest"]]


@pytest.mark.parametrize("module", nightly_except(["runner.evaluate"], ["runner.evaluate", "runner.export"]))
@pytest.mark.parametrize("overrides", nightly_except(MISSING[:1], MISSING))
def test_a_command_without_a_run_is_rejected(trained: Trained, module: str, overrides: list[str]) -> None:
    line = refused(trained.command(module, *overrides, code=2))
    assert "run=null:" in line
    assert "set run=latest or run=<run id>" in line


def test_training_rejects_run(trained: Trained) -> None:
    assert "runner.verify, runner.evaluate, runner.generate and runner.export" in refused(
        trained.command("runner", "run=latest", code=2)
    )


def test_a_run_that_the_store_does_not_have_fails_before_anything_is_computed(trained: Trained) -> None:
    other = f"tracking.uri=sqlite:///{trained.folder / 'other.db'}"
    done = trained.command("runner.evaluate", "run=latest", other, code=1)
    assert f"it has no run {trained.run_id} (" in done.stderr


def test_a_folder_with_other_files_is_rejected(trained: Trained) -> None:
    line = refused(trained.command("runner.export", "run=latest", f"export.folder={trained.folder}", code=2))
    assert f"export.folder={trained.folder}:" in line
