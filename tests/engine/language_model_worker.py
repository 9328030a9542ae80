"""Trains language models on several meshes of 8 devices, in a process of its own, and writes what it found.

Usage: python -m tests.engine.language_model_worker OUT.npz ENGINE, with ENGINE `jax` or `keras_dtensor`. What stock
Keras gives for the same weights and batches stands below `stock`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig
from runner.config.schema_task import LanguageModelOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.data.vocabulary import Vocabulary
from runner.engine import make_engine, registry
from runner.engine.base import CountsCost, Engine, HostBatches
from runner.task.base import DataSpec, OutputSpec
from runner.task.registry import make_task
from runner.training import samples
from tests.configs import with_keys
from tests.engine import cases

STEPS, BATCH, TOKENS, PADDED = 3, 16, 8, 5
VOCABULARY = Vocabulary("bytes", "<end>")
UNITS = 264  # padded to what the axes divide
HEAD = [RuleConfig("head/kernel", [None, "model"]), RuleConfig("head/bias", ["model"])]
FSDP = [RuleConfig("head/kernel", [None, "batch"]), RuleConfig("d1/kernel", ["batch", None])]


class Case(NamedTuple):
    """A mesh, its rules, the parts that a batch is computed in, and whether the loss makes the logits."""

    axes: dict[str, int]
    rules: list[RuleConfig]
    parts: int = 1
    fused: bool = False


CASES: Mapping[str, dict[str, Case]] = {
    "jax": {
        "batch8": Case({"batch": 8}, [], 2),
        "batch4_model2": Case({"batch": 4, "model": 2}, HEAD),
        "batch4_model2 chunks": Case({"batch": 4, "model": 2}, HEAD, 1, True),
        "batch8 chunks fsdp": Case({"batch": 8}, FSDP, 2, True),
        "sequence chunks": Case({"batch": 2, "sequence": 2, "model": 2}, HEAD, 1, True),
    },
    "keras_dtensor": {
        "batch8": Case({"batch": 8}, [], 2),
        "batch4_model2": Case({"batch": 4, "model": 2}, HEAD),
    },
}
_SPECS = {
    "tokens": ArraySpec((TOKENS,), "int32", ("sequence",)),
    "label": ArraySpec((TOKENS,), "int32", ("sequence",)),
    "label_weight": ArraySpec((TOKENS,), "float32", ("sequence",)),
}


def build(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec, fused: bool) -> Any:
    """Builds Embedding, Dense and a head; with `fused` the head gives its input and its weights."""
    given = {name: keras.Input(spec.shape, dtype=spec.dtype, name=name) for name, spec in inputs.items()}
    (tokens,) = given.values()
    x = keras.layers.Embedding(outputs.units, 16, name="embedding")(tokens)
    x = keras.layers.Dense(16, "tanh", name="d1")(x)
    if not fused:
        return keras.Model(tokens, keras.layers.Dense(outputs.units, name="head")(x))

    class Head(keras.layers.Layer):  # type: ignore[misc]
        """The weights of a Dense layer, and its input."""

        def build(self, shape: tuple[int, ...]) -> None:
            """Makes them."""
            self.kernel = self.add_weight(shape=(shape[-1], outputs.units), name="kernel")
            self.bias = self.add_weight(shape=(outputs.units,), initializer="zeros", name="bias")

        def call(self, x: Any) -> dict[str, Any]:
            """Returns them by name."""
            ops = keras.ops
            return {
                "hidden": x,
                "head": ops.convert_to_tensor(self.kernel),
                "head_bias": ops.convert_to_tensor(self.bias),
            }

    return keras.Model(tokens, Head(name="head")(x))


def config(engine: str, case: Case) -> RunConfig:
    """Returns the config of a run."""
    made = cases.config(case.axes)
    made = with_keys(
        made,
        {
            "task": TaskConfig("language_model", [], None, None, asdict(LanguageModelOptions(vocabulary=UNITS))),
            "layout": LayoutConfig(rules=case.rules),
        },
    )
    if "sequence" in case.axes:
        made = with_keys(made, {"layout.inputs": {name: ["batch", "sequence"] for name in _SPECS}})
    return with_keys(
        made,
        {
            "model": ModelConfig(f"{__spec__.name}.build", {"fused": case.fused}),
            "engine.name": engine,
            "engine.compilation_cache": False,
            "dataset.batch_size": BATCH,
            "trainer.accumulate_steps": case.parts,
        },
    )


def batches(data: DataSpec) -> HostBatches:
    """Returns drawn batches, whose examples count for very different numbers of tokens; the last has padding."""
    rng = np.random.default_rng(7)
    shape = (STEPS, BATCH, TOKENS)
    arrays: dict[str, Array] = {
        "tokens": rng.integers(0, 257, shape).astype(np.int32),
        "label": rng.integers(0, 12, shape).astype(np.int32),
        "label_weight": (rng.random(shape) < rng.random((STEPS, BATCH, 1)) ** 3).astype(np.float32),
        WEIGHT: np.ones((STEPS, BATCH), np.float32),
    }
    arrays["label"][rng.random(shape) < 0.1] = 256  # of no byte
    arrays[WEIGHT][-1, -PADDED:] = 0
    return HostBatches(arrays, data.task.weights(arrays), STEPS)


def on_mesh(engine_name: str, case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Trains an engine; returns what it found, and the variables that it began with."""
    made = config(engine_name, case)
    task = make_task(made.task, _SPECS, vocabulary=VOCABULARY)
    engine = make_engine(made, DataSpec(task.arrays, task), STEPS)
    engine.build()
    begun = {path: value for path, value in engine.state().items() if path in engine.placements}
    given = batches(DataSpec(task.arrays, task))
    found = {f"gradient/{path}": value for path, value in engine.gradients(given, 0).items()}
    read = engine.train_steps(engine.place(given), 0).read()
    found |= {f"step/{key}": sums / read.weight for key, sums in read.sums.items()}
    last = HostBatches({k: v[-1:] for k, v in given.arrays.items()}, given.weights[-1:], 1)
    evaluation = engine.evaluate([last], keep_outputs=True)
    found |= {f"eval/{key}": np.asarray(value) for key, value in evaluation.metrics.items()}
    found |= {"examples": np.asarray(evaluation.examples), "outputs": evaluation.outputs}
    found["sample"] = np.asarray(samples.sample(made, engine, task, STEPS, prompt="ab"))
    found["gathered"] = np.asarray(_gathered(engine))
    return found | {k: v for k, v in engine.state().items() if k in begun}, begun


def _gathered(engine: Engine) -> int:
    """Returns the most bytes that one collective brings together; 0 for an engine that counts none."""
    if not isinstance(engine, CountsCost):
        return 0
    return max((each.bytes for each in engine.collectives() if each.kind != "all_reduce"), default=0)


def stock(keras: Any, begun: Mapping[str, Array]) -> dict[str, Array]:
    """Trains with Keras's own loss, weights of samples and optimizer on one device."""
    from runner.optim.stock import stock_optimizer

    made = config("jax", CASES["jax"]["batch8"])
    task = make_task(made.task, _SPECS, vocabulary=VOCABULARY)
    given = batches(DataSpec(task.arrays, task))
    model = build(keras, {"tokens": _SPECS["tokens"]}, task.outputs, fused=False)
    for name in ("embedding", "d1", "head"):
        layer = model.get_layer(name)
        layer.set_weights([begun[f"{name}/{weight.name.split('/')[-1].split(':')[0]}"] for weight in layer.weights])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = stock_optimizer(made.optimizer, STEPS, keras)
    found: dict[str, Array] = {}
    losses: list[float] = []
    hits: list[float] = []

    def weighted(step: int) -> tuple[Array, Array, Array]:
        weight = given.arrays["label_weight"][step] * given.arrays[WEIGHT][step][:, None]
        return given.arrays["tokens"][step], given.arrays["label"][step], weight

    for step in range(STEPS):
        tokens, label, weight = weighted(step)
        loss, gradients, outputs = _gradients(keras, model, entropy, tokens, label, weight)
        losses.append(loss)
        hits.append(float(((outputs.argmax(-1) == label) * weight).sum() / weight.sum()))
        if step == 0:
            names = [f"{layer.name}/{v.name.split('/')[-1].split(':')[0]}" for layer in model.layers
                     for v in layer.trainable_weights]  # fmt: skip
            found |= {f"gradient/{name}": g for name, g in zip(names, gradients, strict=True)}
        if hasattr(optimizer, "apply"):
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], model.trainable_variables)
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    tokens, label, weight = weighted(STEPS - 1)
    nats = np.asarray(entropy(label, model(tokens)), np.float64) * weight
    mean = nats.sum() / weight.sum()
    size = (VOCABULARY.token_bytes()[label] * weight).sum()
    right = ((np.asarray(model(tokens)).argmax(-1) == label) * weight).sum() / weight.sum()
    found |= {"eval/loss": mean, "eval/perplexity": np.exp(mean), "eval/accuracy": right}
    found |= {"eval/bits_per_byte": nats.sum() / np.log(2) / size, "step/loss": np.asarray(losses)}
    found |= {f"{layer.name}/{v.name.split('/')[-1].split(':')[0]}": np.asarray(v)
              for layer in model.layers for v in layer.trainable_weights}  # fmt: skip
    return {key: np.asarray(value) for key, value in (found | {"step/accuracy": np.asarray(hits)}).items()}


def _gradients(
    keras: Any, model: Any, entropy: Any, tokens: Array, label: Array, weight: Array
) -> tuple[float, list[Array], Array]:
    """Returns the mean loss over the counted tokens, its gradients, and the logits."""
    if keras.__name__ == "keras":
        import jax

        def total(trainable: list[Any]) -> Any:
            outputs, _ = model.stateless_call(trainable, [], tokens)
            return (entropy(label, outputs) * weight).sum() / weight.sum(), outputs

        (loss, outputs), found = jax.value_and_grad(total, has_aux=True)([v.value for v in model.trainable_variables])
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = model(tokens)
            loss = tf.reduce_sum(entropy(label, outputs) * weight) / weight.sum()
        found = [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]
    return float(loss), [np.asarray(each) for each in found], np.asarray(outputs)


def main() -> None:
    """Writes `<case>:<name>` arrays of every case, and of stock Keras."""
    out, engine = sys.argv[1], sys.argv[2]
    registry.load(config(engine, next(iter(CASES[engine].values()))))
    arrays: dict[str, Array] = {}
    begun: dict[str, Array] = {}
    for name, case in CASES[engine].items():
        if case.fused:
            from runner.engine.jax.layers import chunked_loss

            # Two chunks of what one device of eight has of a whole batch, and more where fewer parts split it.
            chunked_loss.MOST_BYTES["cpu"] = BATCH * TOKENS * UNITS * 4 // 16
        found, first = on_mesh(engine, case)
        begun = begun or first
        arrays |= {f"{name}:{key}": value for key, value in found.items()}
        arrays |= {f"{name}:begun/{key}": value for key, value in first.items()}
    if engine == "jax":
        import keras
    else:
        import tf_keras as keras
    arrays |= {f"stock:{key}": value for key, value in stock(keras, begun).items()}
    np.savez(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
