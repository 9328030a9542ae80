"""Builders of users that need something else than a tf_keras model by name: trained, or one line that is right."""

from pathlib import Path

import numpy as np
import pytest

from tests.commands import ran
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

MODULE = """
def masked(keras, outputs):
    x = keras.Input((6,), dtype="int32")
    e = keras.layers.Embedding(50, 8, mask_zero=True)(x)
    a = keras.layers.MultiHeadAttention(2, 4)(e, e)
    return keras.Model(x, keras.layers.Dense(outputs.units)(keras.layers.GlobalAveragePooling1D()(a)))


def towers(keras, outputs):
    class Towers(keras.Model):
        def __init__(self):
            super().__init__()
            self.user = keras.layers.Dense(4)
            self.film = keras.layers.Dense(4)
            self.head = keras.layers.Dense(outputs.units)

        def call(self, inputs):
            user, film = inputs
            return self.head(self.user(user) * self.film(film))

    return Towers()


def plain():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])


def causal(preprocessor=None):
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(50, 1, 2, 8, 16, max_sequence_length=6)
    if preprocessor:
        import keras

        preprocessor = keras.layers.Identity()
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=preprocessor)


def ids(keras, outputs):
    x = keras.Input((6,), dtype="int32")
    e = keras.layers.Embedding(20, 8, name="words")(x)
    return keras.Model(x, keras.layers.Dense(outputs.units)(keras.layers.GlobalAveragePooling1D()(e)))



def level(keras):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def broadcast(ops, outputs, batch):
    return ops.mean(ops.square(outputs - ops.cast(batch["label"], "float32")), axis=-1)
"""

JAX = "engine=jax"
LANGUAGE = ["task=language_model", "task.vocabulary=50"]
BROADCAST = ["task=custom", "task._target_=own_builders.broadcast"]
SPLIT = "trainer.accumulate_steps=2"
TRAINED = {"towers": ("two", [JAX]), "causal": ("rows", [JAX, *LANGUAGE])}
REJECTED = [
    ("masked", "tokens", [], 2, ["adds a dim by indexing", "; set engine=jax"]),
    ("plain", "x", [], 2, ["the builder returned a Keras 3 model", "; set engine=jax"]),
    ("causal", "rows", [JAX, *LANGUAGE, "+model.preprocessor=true"], 2, ["GPT2CausalLM has a preprocessor", "=None"]),
    ("ids", "tokens", [JAX], 1, ["at step 1, before", "ids outside of an Embedding's input_dim", "JAX_DEBUG_NANS"]),
    ("level", "x", [JAX, *BROADCAST, SPLIT], 2, [f"{SPLIT}: the loss of", "arrays are broadcast, such as"]),
]
# One of each way in which an error comes about: of a trace, a type, a value, and a shape.
ALWAYS = (0, 1, 3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own_builders")
    (made / "own_builders.py").write_text(MODULE)
    draw = np.random.default_rng(0)
    label = draw.integers(0, 3, 96).astype("int32")
    tokens = draw.integers(1, 50, (96, 6)).astype("int32")
    np.savez(made / "tokens.npz", tokens=np.where(np.arange(6) < 4, tokens, 0), label=label)
    np.savez(made / "rows.npz", tokens=tokens, label=np.roll(tokens, -1, 1))
    a, b = (draw.normal(size=(96, size)).astype("float32") for size in (3, 5))
    np.savez(made / "two.npz", a=a, b=b, label=label)
    np.savez(made / "x.npz", x=a, label=label)
    return made


def run(folder: Path, builder: str, data: str, extra: list[str], code: int = 0) -> tuple[str, str]:
    """Trains a builder; returns what the run printed out and what it printed as errors."""
    arguments = f"model=custom model._target_=own_builders.{builder} dataset=arrays dataset.path={data}.npz".split()
    arguments += ["mesh=batch2", "dataset.batch_size=16", "trainer.epochs=1", "tracking=none", "trainer.progress=none"]
    arguments += [*extra, f"hydra.run.dir={folder / 'run'}"]
    library = "jax" if JAX in extra else "tensorflow"
    done = ran(folder, "runner", *arguments, library=library, code=code)
    return done.stdout, done.stderr


@pytest.mark.parametrize("builder", nightly_except(["towers"], list(TRAINED)))
def test_a_builder_of_stock_keras_code_is_trained(folder: Path, builder: str) -> None:
    data, extra = TRAINED[builder]
    out, _ = run(folder, builder, data, extra)
    assert "test accuracy" in out


@pytest.mark.parametrize(
    ("builder", "data", "extra", "code", "shown"),
    nightly_except([REJECTED[index] for index in ALWAYS], REJECTED),
    ids=["-".join([case[0], *case[2]]) for case in REJECTED],
)
def test_what_is_not_the_users_fault_is_one_line_that_is_right(
    folder: Path, builder: str, data: str, extra: list[str], code: int, shown: list[str]
) -> None:
    _, err = run(folder, builder, data, extra, code)
    line = err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    for part in shown:
        assert part in line
    assert "write tf." not in line


@pytest.mark.parametrize("extra", nightly_except([[JAX]], [[JAX], []]), ids=["jax", "keras_dtensor"])
def test_a_loss_whose_arrays_are_broadcast_is_a_warning_on_the_terminal_and_in_the_log(
    folder: Path, extra: list[str]
) -> None:
    out, _ = run(folder, "level", "x", [*extra, *BROADCAST])
    (line,) = [line for line in out.splitlines() if line.startswith("warning: task._target_=own_builders.broadcast: ")]
    assert "arrays are broadcast, such as outputs [batch, 1] minus a target [batch]" in line
    assert line.removeprefix("warning: ") in (folder / "run" / "runner.log").read_text()
