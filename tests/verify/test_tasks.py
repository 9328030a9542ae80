"""Verify passes every kind of task and model with random numbers, and sees a loss that is wrong on the mesh alone."""

from pathlib import Path

import numpy as np
import pytest

from tests.nightly import nightly_except
from tests.verify.test_verify import broken, command, failures, result

pytestmark = pytest.mark.slow

NETS = """
def pixels(keras, inputs, outputs):
    (name, spec), = inputs.items()
    x = keras.Input(spec.shape, name=name)
    hidden = keras.layers.Conv2D(8, 3, padding="same", activation="tanh", name="hidden")(x)
    return keras.Model(x, keras.layers.Conv2D(outputs.units, 1, name="head")(hidden))


def pairs(keras, inputs, outputs):
    tokens = {name: keras.Input(spec.shape, dtype="int32", name=name) for name, spec in inputs.items()}
    source = keras.layers.Embedding(16, 8, name="source_table")(tokens["source"])
    source = keras.layers.GlobalAveragePooling1D(name="pool")(source)
    source = keras.layers.Reshape((1, 8), name="shape")(source)
    target = keras.layers.Embedding(16, 8, name="target_table")(tokens["target"])
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(target + source)
    return keras.Model(tokens, keras.layers.Dense(outputs.units, name="head")(hidden))


def several(keras, inputs, outputs):
    tensors = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    x = keras.layers.Concatenate(name="joined")(list(tensors.values()))
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(x)
    units = {name: spec.units for name, spec in outputs.by_name.items()}
    tags = keras.layers.Dense(8 * units["tags"], name="tags_head")(hidden)
    heads = {name: keras.layers.Dense(units[name], name=name)(hidden) for name in ("age", "sick")}
    return keras.Model(tensors, {**heads, "tags": keras.layers.Reshape((8, units["tags"]), name="tags")(tags)})
"""
KINDS = {
    "segmentation": ["task=segmentation", "task.ignore_index=255", "model._target_=nets.pixels"],
    "sequences": ["task=language_model", "task.vocabulary=16", "model._target_=nets.pairs"],
    "crossentropy": ["task=regression", "task.loss=binary_crossentropy", "task.from_logits=true", "model=mlp"],
    "several": [
        "task=several",
        "task.outputs={age:{name:regression,loss:huber,weight:0.1,example_weight:own},"
        "sick:{name:binary,class_weights:[0.5,2.0]},tags:{name:positions,classes:4,ignore_index:-1,weight:2}}",
        "model._target_=nets.several",
    ],
}
PLACES = [("jax", "batch8"), ("jax", "batch4_model2"), ("keras_dtensor", "batch8")]
SHORT = ["verify.steps=4", "dataset.batch_size=32", "tracking=none"]

# One output is near those of its own label, and far from those of others: each row's loss is of all rows.
CONTRAST = """
def loss(ops, outputs, batch):
    unit = outputs / ops.sqrt(ops.sum(ops.square(outputs), axis=-1, keepdims=True) + 1e-6)
    near = 2.0 * ops.matmul(unit, ops.transpose(unit))
    label = ops.one_hot(batch["label"], 10)
    same = ops.matmul(label, ops.transpose(label))
    log = near - ops.expand_dims(ops.logsumexp(near), -1)
    return -ops.sum(same * log, axis=-1) / ops.sum(same, axis=-1)


def alike(ops, outputs, batch):
    square = ops.sum(ops.square(outputs), axis=-1, keepdims=True)
    return ops.mean(square + ops.transpose(square) - 2.0 * ops.matmul(outputs, ops.transpose(outputs)), axis=-1)
"""
CONTRASTIVE = ["task=custom", "task._target_=contrast.loss", "task.minimize=[alike]", "task.units=6", "mesh=batch8"]


def written(folder: Path) -> None:
    """Writes a table."""
    rng = np.random.default_rng(0)
    area, age = rng.uniform(30, 200, 200), rng.uniform(0, 80, 200)
    lines = [f"{a:.1f},{b:.1f},{2 * a - 0.8 * b:.2f}" for a, b in zip(area, age, strict=True)]
    (folder / "houses.csv").write_text("\n".join(["area,age,price", *lines]) + "\n")


@pytest.mark.parametrize("engine", nightly_except(["jax"], ["keras_dtensor", "jax"]))
@pytest.mark.parametrize("mesh", nightly_except(["batch4_model2"], ["batch8", "batch4_model2"]))
def test_a_regression_from_a_table_equals_one_device(tmp_path: Path, engine: str, mesh: str) -> None:
    written(tmp_path)
    table = ["dataset=arrays", "dataset.path=houses.csv", "task=regression", "task.target=price"]
    layout = ["layout=megatron"] if "model" in mesh else []
    done = command(tmp_path, *table, f"engine={engine}", f"mesh={mesh}", *layout, *SHORT)
    assert "verified: 4 steps" in done.stdout
    assert max(float(check["ratio"]) for check in result(tmp_path)["checks"]) < 0.5, "far from the tolerances"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "more"), [("keras_dtensor", []), ("jax", []), ("jax", ["trainer.accumulate_steps=2"])]
)
def test_a_loss_that_reads_other_rows_equals_one_device(tmp_path: Path, engine: str, more: list[str]) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    done = command(tmp_path, *CONTRASTIVE, f"engine={engine}", *SHORT, *more)
    assert "verified: 4 steps" in done.stdout
    checks = {check["name"]: check for check in result(tmp_path)["checks"] if check["kind"] == "evaluation"}
    assert set(checks) == {f"point{point}/evaluated/{name}" for point in (0, 1) for name in ("loss", "alike")}
    assert max(float(check["ratio"]) for check in checks.values()) < 0.5, "far from the tolerances"


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_padding_that_a_loss_reads_in_an_evaluation_is_seen(tmp_path: Path, engine: str) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    broken(tmp_path, "padding_in_an_evaluation", *CONTRASTIVE, f"engine={engine}", *SHORT)
    assert "/evaluated/" in result(tmp_path)["first"]
    found = failures(tmp_path)
    assert set(found) == {f"point{point}/evaluated/{name}" for point in (0, 1) for name in ("loss", "alike")}
    assert min(found.values()) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_padding_of_a_training_that_a_loss_reads_is_rejected(tmp_path: Path, engine: str) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    done = command(tmp_path, *CONTRASTIVE, f"engine={engine}", *SHORT, "dataset.remainder=pad", code=2)
    assert "dataset.remainder=pad: the loss of an example depends on other rows" in done.stderr


def write_arrays(folder: Path, kind: str) -> None:
    """Writes the module of the models, and arrays for a kind of task."""
    rng = np.random.default_rng(0)
    (folder / "nets.py").write_text(NETS)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    tags = rng.integers(0, 4, (200, 8)).astype(np.int32)
    tags[::2, 5:] = -1
    mask = rng.choice([0, 1, 2, 255], (200, 8, 8, 1)).astype(np.uint8)
    tokens = rng.integers(1, 16, (200, 6)).astype(np.int32)
    tokens[::3, 4:] = 0
    arrays = {
        "segmentation": {"image": rng.integers(0, 255, (200, 8, 8, 3)).astype(np.uint8), "y": mask},
        "sequences": {
            "source": tokens[:, ::-1].copy(),
            "target": tokens[:, :-1],
            "label": tokens[:, 1:],
            "label_weight": (tokens[:, 1:] > 0).astype(np.float32),
        },
        "crossentropy": {"x": x, "y": (x > 0).astype(np.float32)},
        "several": {
            "left": x[:, :4],
            "right": x[:, 4:],
            "age": 3.0 * x.sum(1),
            "sick": (x.sum(1) > 1).astype(np.int32),
            "tags": tags,
            "own": rng.uniform(0.5, 2.0, 200).astype(np.float32),
        },
    }
    np.savez(folder / "data.npz", **arrays[kind])  # type: ignore[arg-type]


@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "mesh"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_task_equals_one_device(tmp_path: Path, kind: str, engine: str, mesh: str) -> None:
    if kind == "crossentropy" and engine != "jax":
        pytest.skip("a loss of Keras 3")
    write_arrays(tmp_path, kind)
    model = [] if "model=mlp" in KINDS[kind] else ["model=custom"]
    data = ["dataset=arrays", "dataset.path=data.npz", "dataset.batch_size=32", "tracking=none", "verify.steps=3"]
    done = command(tmp_path, *data, *model, *KINDS[kind], f"engine={engine}", f"mesh={mesh}")
    assert "verified: 3 steps" in done.stdout
    assert max(float(check["ratio"]) for check in result(tmp_path)["checks"]) < 0.5, "far from the tolerances"


MODULE = """
def dropout(keras, outputs):
    class Always(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="always")
            self.dropout = keras.layers.Dropout(0.5, name="dropout")

        def call(self, x):
            return self.dropout(x, training=True)

    layers = keras.layers
    hidden = [layers.Flatten(), layers.Dense(16, "tanh", name="hidden"), Always()]
    return keras.Sequential([keras.Input((8, 8, 1)), *hidden, layers.Dense(outputs.units, name="head")])


def vae(keras, outputs):
    class Sampling(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="sampling")
            self.encoder = keras.layers.Dense(4, name="encoder")
            self.decoder = keras.layers.Dense(64, name="decoder")
            self.noise = keras.layers.GaussianNoise(1.0, name="noise")

        def call(self, x):
            error = self.decoder(self.noise(self.encoder(x), training=True)) - x
            mean = (keras.ops if hasattr(keras, "ops") else keras.backend).mean
            self.add_loss(mean(error * error))
            return error[:, :1]

    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), Sampling()])


def no_loss(ops, outputs, batch):
    return 0.0 * ops.sum(outputs, axis=-1)
"""
VAE = ["vae", "task=custom", "task._target_=random_models.no_loss"]
CASES = [("jax", ["dropout"]), ("keras_dtensor", ["dropout"]), ("jax", VAE)]
LEFT_OUT = "no evaluation is compared, as its loss has random numbers of the model's own"


@pytest.mark.parametrize(("engine", "model"), nightly_except(CASES[2:], CASES))
def test_random_numbers_in_an_evaluation_are_no_mismatch(tmp_path: Path, engine: str, model: list[str]) -> None:
    (tmp_path / "random_models.py").write_text(MODULE)
    builder, *task = model
    chosen = ["model=custom", f"model._target_=random_models.{builder}", *task, f"engine={engine}", "mesh=batch8"]
    # A batch of the evaluation is padded on the mesh alone: what is drawn there must not depend on it.
    done = command(tmp_path, *chosen, "verify.steps=3", "dataset.batch_size=32", "tracking=none")
    assert "verified: 3 steps" in done.stdout
    compared = any(check["kind"] == "evaluation" for check in result(tmp_path)["checks"])
    assert compared == (engine == "jax"), "keras_dtensor draws others in each call"
    assert (LEFT_OUT in " ".join(done.stdout.split())) != compared
