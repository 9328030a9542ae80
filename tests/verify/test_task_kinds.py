"""Verify passes for every kind of task with targets of its own, on both engines and meshes of one and two axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.verify.test_verify import command, result

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

NETS = """
def steps(keras, inputs, outputs):
    (name, spec), = inputs.items()
    x = keras.Input(spec.shape, name=name)
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(x)
    return keras.Model(x, keras.layers.Dense(outputs.units, name="head")(hidden))


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
    "binary": ["task=binary", "task.class_weights=[0.5,2.0]", "model=mlp", "model.hidden=[16]"],
    "positions": ["task=positions", "task.ignore_index=-1", "model._target_=nets.steps"],
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


def written(folder: Path, kind: str) -> None:
    """Writes the module of the models, and arrays for a kind of task."""
    rng = np.random.default_rng(0)
    (folder / "nets.py").write_text(NETS)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    sequences = rng.normal(size=(200, 8, 3)).astype(np.float32)
    tags = rng.integers(0, 4, (200, 8)).astype(np.int32)
    tags[::2, 5:] = -1
    mask = rng.choice([0, 1, 2, 255], (200, 8, 8, 1)).astype(np.uint8)
    tokens = rng.integers(1, 16, (200, 6)).astype(np.int32)
    tokens[::3, 4:] = 0
    arrays = {
        "binary": {"x": x, "y": (x.sum(1) > 1).astype(np.int32)},
        "positions": {"x": sequences, "y": tags},
        "segmentation": {"image": rng.integers(0, 255, (200, 8, 8, 3)).astype(np.uint8), "y": mask},
        "sequences": {
            "source": tokens[:, ::-1].copy(),
            "target": tokens[:, :-1],
            "y": tokens[:, 1:],
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


@pytest.mark.parametrize(("engine", "mesh"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_task_equals_one_device(tmp_path: Path, kind: str, engine: str, mesh: str) -> None:
    if kind == "crossentropy" and engine != "jax":
        pytest.skip("a loss of Keras 3")
    written(tmp_path, kind)
    model = [] if "model=mlp" in KINDS[kind] else ["model=custom"]
    data = ["dataset=arrays", "dataset.path=data.npz", "dataset.batch_size=32", "tracking=none", "verify.steps=3"]
    done = command(tmp_path, *data, *model, *KINDS[kind], f"engine={engine}", f"mesh={mesh}")
    assert "verified: 3 steps" in done.stdout
    assert max(float(check["ratio"]) for check in result(tmp_path)["checks"]) < 0.5, "far from the tolerances"
