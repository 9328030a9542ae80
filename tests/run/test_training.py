"""What `trainer` can do besides training, in whole runs of the real command."""

import json
from pathlib import Path

import pytest

from tests.commands import ran
from tests.nightly import nightly_except
from tests.run.test_runs import recorded, run, steps_of, summary

pytestmark = pytest.mark.slow

PROFILED = ["trainer.profile.start=3", "trainer.profile.steps=2"]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_a_few_steps_are_traced(tmp_path: Path, engine: str) -> None:
    run(tmp_path, f"engine={engine}", "mesh=batch2", *PROFILED, "trainer.epochs=1")
    client, found = recorded(tmp_path)
    place = Path(client.download_artifacts(found.info.run_id, "profile", str(tmp_path)))
    (space,) = list(place.rglob("*.xplane.pb"))
    assert space.stat().st_size > 1000


SOFTMAX = """
def build(keras, input_shape, num_classes):
    layers = keras.layers
    last = layers.Dense(num_classes, activation="softmax", name="shares")
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), last])
"""


@pytest.mark.parametrize("engine", nightly_except(["jax"], ["keras_dtensor", "jax"]))
def test_a_model_that_ends_in_a_softmax_is_warned_of_before_it_is_trained(tmp_path: Path, engine: str) -> None:
    (tmp_path / "soft.py").write_text(SOFTMAX)
    short = ["trainer.epochs=1", "trainer.limit_train_batches=1", "tracking=none", "trainer.checkpoint.enabled=false"]
    done = run(tmp_path, f"engine={engine}", *short, "model=custom", "model._target_=soft.build")
    before = done.stdout[: done.stdout.index("epoch 1/1")]
    said = "warning: the model's outputs are from 0 to 1, as after a softmax"
    assert before.count("warning: ") == before.count(said) == 1


@pytest.mark.nightly
def test_what_is_held_out_selects_and_the_test_split_is_evaluated_once_at_the_end(tmp_path: Path) -> None:
    keep = f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"
    done = run(tmp_path, "engine=jax", "mesh=batch2", "trainer.epochs=2", "dataset.holdout=0.1", keep, library="jax")
    assert (
        "selects the best checkpoint by eval/accuracy; test, 360 examples, is evaluated once at the end" in done.stdout
    )
    client, found = recorded(tmp_path)
    seen = summary(tmp_path)
    assert (seen["eval_examples"], seen["test_examples"]) == (144, 360)
    assert steps_of(client, found.info.run_id, "eval/accuracy") == [20, 40]
    (point,) = client.get_metric_history(found.info.run_id, "test/accuracy")
    assert (point.step, point.value) == (40, seen["test_accuracy"])
    chosen = ("run=latest", "evaluate.split=validation", "dataset.holdout=0.1", keep, "tracking=none")
    ran(tmp_path, "runner.evaluate", *chosen, f"hydra.run.dir={tmp_path / 'seen'}", library="jax")
    evaluated = json.loads((tmp_path / "seen" / "evaluate.json").read_text())
    assert (evaluated["split"], evaluated["examples"]) == ("validation", 144)
    assert evaluated["metrics"]["accuracy"] == seen["eval_accuracy"]
