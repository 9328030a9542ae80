"""The real command: a sound engine is verified, and one that computes wrongly is seen, and where."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.tracking.records import figures_of
from tests import forks
from tests.commands import ran
from tests.nightly import nightly_except
from tests.stores import store_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILDER = '''
def kinked(keras, input_shape, num_classes):
    """Black pixels under a bias of 0 lie exactly where the ReLU bends."""
    layers = [
        keras.layers.Conv2D(6, 3, activation="relu", name="conv"),
        keras.layers.Flatten(),
        keras.layers.Dense(num_classes, name="head"),
    ]
    return keras.Sequential([keras.Input(input_shape), *layers])


def biased(keras, input_shape, num_classes):
    """The gradient of a bias before a batch normalization is zero in mathematics."""
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(32, name="d1"),
        keras.layers.BatchNormalization(name="bn"),
        keras.layers.Activation("tanh"),
        keras.layers.Dense(num_classes, name="d2"),
    ]
    return keras.Sequential([keras.Input(input_shape), *layers])


def activated(keras, input_shape, num_classes):
    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes, activation="softmax")]
    return keras.Sequential([keras.Input(input_shape), *layers])

'''


def command(
    folder: Path, *overrides: str, module: str = "runner.verify", code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in `folder`, on digits where no dataset is named, and checks its exit code."""
    (folder / "my_models.py").write_text(BUILDER)
    variables = {"COLUMNS": "120", "MLFLOW_TRACKING_URI": store_in(folder), **environment}
    data = [] if any(each.startswith("dataset=") for each in overrides) else ["dataset=digits"]
    return ran(folder, module, *data, f"hydra.run.dir={folder / 'run'}", *overrides, code=code, **variables)


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "verify.json").read_text()))


def failures(folder: Path) -> dict[str, float]:
    """Returns what failed, with the difference in tolerances."""
    return {check["name"]: float(check["ratio"]) for check in result(folder)["checks"] if not check["passed"]}


def recorded(folder: Path) -> tuple[Any, set[str]]:
    """Returns the only run of the folder's store and its artifacts."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("runner")
    assert experiment is not None
    (only,) = client.search_runs([experiment.experiment_id])
    return only, {item.path for item in client.list_artifacts(only.info.run_id)}


@pytest.mark.nightly
def test_the_mlp_on_eight_devices_is_verified_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*forks.REAL)
    done = command(tmp_path, "mesh=batch8", "dataset.remainder=pad", "verify.steps=24")
    assert "verified: 24 steps on batch=8 match one device; 4 of 4 variables are sensitive" in done.stdout
    content = result(tmp_path)
    assert (content["verdict"], content["verified"]) == ("verified", True)
    assert all(each["sensitive"] and float(each["resolution"]) < 0.01 for each in content["variables"])
    assert float(content["checks"][0]["ratio"]) == 0
    kinds = [check["kind"] for check in content["checks"]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "initial": 4,
        "loss": 1,
        "gradient": 4,
        "parameter": 4,
        "slot": 8,
        "point": 2 * (1 + 4),
        "evaluation": 2,
        "update": 2 * (4 + 8),
        "padding": 4 + 8,
    }
    assert content["longest_sum"] == 128
    assert content["versions"]["tensorflow"].startswith("2.21")
    for name in ("(loss)", "d1/kernel", "d2/bias", "noise", "128"):
        assert name in done.stdout
    run, artifacts = recorded(tmp_path)
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("verify-mlp-batch8")
    assert run.data.tags["runner.verified"] == "true"
    assert run.data.tags["runner.verdict"] == "verified"
    figures = figures_of(run.data.tags)
    assert figures["verify/verified_share"] == 1
    assert "`python -m runner.verify dataset=digits" in run.data.tags["mlflow.note.content"]
    assert 0 < figures["verify/worst_ratio"] < 1
    assert {"config.yaml", "verify.json"} <= artifacts


def broken(folder: Path, kind: str, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    chosen = ["mesh=batch8", "verify.steps=6", *overrides]
    done = command(folder, *chosen, module="tests.verify.broken", code=1, BREAK=kind, **environment)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    return done


ENGINES = ["keras_dtensor", "jax"]
KINKED = ["model=custom", "model._target_=my_models.kinked", "optimizer=sgd", "tracking=none"]


@pytest.mark.parametrize("engine", nightly_except(["jax"], ENGINES))
@pytest.mark.parametrize("factor", nightly_except(["0.125"], ["-1", "0", "0.125", "0.9", "2"]))
def test_a_wrong_gradient_of_a_bias_at_the_kink_is_seen_by_name(tmp_path: Path, engine: str, factor: str) -> None:
    broken(tmp_path, "scaled_bias", *KINKED, f"engine={engine}", FACTOR=factor, ENGINE=engine)
    content, found = result(tmp_path), failures(tmp_path)
    assert content["verdict"] == "mismatch"
    assert {name for name in found if "/gradient/" in name} == {f"point{n}/gradient/conv/bias" for n in (0, 1)}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sound_bias_at_the_kink_is_verified(tmp_path: Path, engine: str) -> None:
    command(tmp_path, "mesh=batch8", "verify.steps=6", *KINKED, f"engine={engine}")
    known = {each["variable"]: each for each in result(tmp_path)["variables"]}
    assert known["conv/bias"]["sensitive"]
    assert float(known["conv/bias"]["resolution"]) < 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bias_before_a_batch_normalization_is_zero_on_both_sides(tmp_path: Path, engine: str) -> None:
    biased = ["model=custom", "model._target_=my_models.biased", f"engine={engine}"]
    done = command(tmp_path, "mesh=batch8", "verify.steps=4", *biased, "tracking=none")
    known = {each["variable"]: each for each in result(tmp_path)["variables"]}
    assert known["d1/bias"]["zero"]
    assert not known["d1/bias"]["why"]
    assert [path for path, each in known.items() if not each["sensitive"]] == ["d1/bias"]
    assert "the gradients of d1/bias are zero up to rounding" in " ".join(done.stdout.split())


@pytest.mark.nightly
def test_an_inconclusive_verdict_fails_unless_it_is_allowed(tmp_path: Path) -> None:
    # Units that no input wakes: no gradient arrives, at no point.
    (tmp_path / "dead.py").write_text(
        "def build(keras, input_shape, num_classes):\n"
        "    def dead(x):\n"
        "        return keras.activations.relu(x - 1e6)\n"
        "    flat, first = keras.layers.Flatten(), keras.layers.Dense(8, activation=dead, name='dead')\n"
        "    inputs = keras.Input(input_shape)\n"
        "    x = flat(inputs)\n"
        "    y = keras.layers.Dense(num_classes, name='head')(x)\n"
        "    z = keras.layers.Dense(num_classes, use_bias=False, name='away')(first(x))\n"
        "    return keras.Model(inputs, keras.layers.Add()([y, z]))\n"
    )
    chosen = ["model=custom", "model._target_=dead.build", "engine=jax", "mesh=batch2", "verify.steps=1"]
    done = command(tmp_path, *chosen, "tracking=none", code=1)
    assert done.stderr.startswith(
        "error: inconclusive: 1 steps on batch=2 match one device; 2 of 5 variables are sensitive"
    )
    assert "its gradient is 0 at all randomly perturbed weights" in done.stderr
    assert result(tmp_path)["verdict"] == "inconclusive"
    command(
        tmp_path, *chosen, "tracking=none", "verify.allow_inconclusive=true", f"hydra.run.dir={tmp_path / 'again'}"
    )


@pytest.mark.nightly
def test_training_that_verifies_first_records_it_and_then_trains(tmp_path: Path) -> None:
    chosen = ["mesh=batch2", "trainer.verify_first=true", "verify.steps=2", "trainer.epochs=1"]
    done = command(tmp_path, *chosen, "trainer.log_model=false", module="runner")
    assert done.stdout.index("verified: 2 steps") < done.stdout.index("epoch 1/1")
    run, artifacts = recorded(tmp_path)
    assert run.info.status == "FINISHED"
    assert run.data.tags["runner.verified"] == "true"
    assert {"verify.json", "curves.png"} <= artifacts


@pytest.mark.nightly
def test_training_that_verifies_first_does_not_begin_on_a_wrong_engine(tmp_path: Path) -> None:
    done = broken(tmp_path, "larger_gradient", "engine=jax", "trainer.verify_first=true", COMMAND="train")
    assert "gradient/d2/kernel" in done.stderr
    run, artifacts = recorded(tmp_path)
    assert run.info.status == "FAILED"
    assert run.data.tags["runner.verified"] == "false"
    assert "verify.json" in artifacts
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.nightly
def test_a_finished_run_stays_so_if_its_resume_is_not_verified(tmp_path: Path) -> None:
    chosen = ["mesh=batch8", "engine=jax", "trainer.epochs=1", "trainer.log_model=false"]
    command(tmp_path, *chosen, module="runner")
    before, _ = recorded(tmp_path)
    done = broken(
        tmp_path,
        "larger_gradient",
        *("engine=jax", "resume=latest", "trainer.epochs=2", "trainer.verify_first=true", "trainer.log_model=false"),
        f"hydra.run.dir={tmp_path / 'again'}",
        COMMAND="train",
    )
    assert "gradient/d2/kernel" in done.stderr
    after, _ = recorded(tmp_path)
    assert after.info.status == "FINISHED"
    assert after.data.tags == before.data.tags


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_a_users_layer_is_told_in_its_own_words(tmp_path: Path, engine: str) -> None:
    (tmp_path / "raising.py").write_text(
        "def build(keras, input_shape, num_classes):\n"
        "    class Raising(keras.layers.Layer):\n"
        "        def call(self, x, training=None):\n"
        "            if training:\n"
        "                raise ValueError('no training with me')\n"
        "            return x\n"
        "    layers = [keras.layers.Flatten(), Raising(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential([keras.Input(input_shape), *layers])\n"
    )
    chosen = ["model=custom", "model._target_=raising.build", f"engine={engine}", "mesh=batch2", "tracking=none"]
    (folder := tmp_path / "run").mkdir()
    held = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    arguments = ["-m", "runner.verify", "dataset=digits", *chosen, "verify.steps=1", f"hydra.run.dir={folder}"]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=held, capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1
    assert "no training with me" in done.stderr
    assert "exited" not in done.stderr


@pytest.mark.nightly
def test_a_mistake_that_both_sides_share_is_warned_of(tmp_path: Path) -> None:
    # One device is given the same options: the numbers agree, and are not those of the user's script.
    model = ["engine=jax", "mesh=batch2", "model=custom", "model._target_=my_models.activated"]
    said = command(tmp_path, *model, "verify.steps=3").stdout
    warning = (
        "the model's outputs are from 0 to 1, as after a softmax; set task.from_logits=false, or remove the activation"
    )
    assert said.count(f"warning: {warning}") == 1
    assert result(tmp_path)["warnings"] == [warning]
    assert "warning" not in command(tmp_path, *model, "verify.steps=3", "task.from_logits=false").stdout


def test_a_side_that_refuses_the_config_ends_in_exit_code_two(tmp_path: Path) -> None:
    rule = "layout.rules=[{match: nowhere/kernel, spec: [null, model]}]"
    done = command(tmp_path, "mesh=batch4_model2", rule, "tracking=none", "verify.steps=1", code=2)
    assert done.stderr.startswith("error: layout.rules[0].match=nowhere/kernel: matches no variable")
