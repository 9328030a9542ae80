"""Runs in a process of its own: trains small transformers on packed rows, and on the same examples padded.

Usage: python -m tests.engine.packed_rows_worker OUT.npz JSON, with JSON {"engine": ..., "runs": [[mesh, name of
OPTIONS, packed], ...]}. Each array is called `<mesh>:<name>:<packed>:<loss, path, gradient/path or eval>`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import DatasetConfig, LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RunConfig
from runner.config.schema_task import LanguageModelOptions, TaskConfig
from runner.data.base import WEIGHT, Array, Dataset
from runner.data.loading import load as load_data
from runner.engine import registry
from runner.engine.base import HostBatches
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.docs import pages

STEPS = 3
# Rows are filled up to a multiple of this with padding of weight 0, which every mesh divides.
MULTIPLE = 16
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {"fused_head": False},
    "llama": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "key_value_heads": 2,
        "fused_head": False,
    },
    "fused": {"fused_head": True, "scan": True, "remat": "full"},
}
_SIZES = {"dim": 32, "depth": 2, "heads": 4, "feedforward": 64}
TOKENS, VOCABULARY = 16, 64
AXES = {"single": {"batch": 1}, "batch8": {"batch": 8}, "batch4_model2": {"batch": 4, "model": 2}}


def load(packed: bool) -> dict[str, Any]:
    """Returns sequences of 2 to 16 tokens with their next tokens, padded, or packed as docs/text.md does it."""
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, VOCABULARY, rng.integers(2, TOKENS + 1)) for _ in range(48)]
    if packed:
        program: dict[str, Any] = {}
        exec(pages.files("text")["packed_rows.py"], program)
        rows: dict[str, Any] = program["pack"](tokens, TOKENS)
        return rows
    padded = {name: np.zeros((len(tokens), TOKENS), np.int32) for name in ("tokens", "label")}
    padded["label_weight"] = np.zeros((len(tokens), TOKENS), np.float32)
    for row, sequence in enumerate(tokens):
        padded["tokens"][row, : len(sequence)] = sequence
        padded["label"][row, : len(sequence) - 1] = sequence[1:]
        padded["label_weight"][row, : len(sequence) - 1] = 1.0
    return padded


def dataset(*, packed: bool) -> Dataset:
    """Returns the examples as packed rows, or each as a row of its own, padded."""
    config = DatasetConfig(
        name="custom",
        target=f"{__spec__.name}.load",
        options={"packed": packed},
        test="train",
    )
    return load_data(config)


def on_mesh(engine_name: str, mesh: str, name: str, *, packed: bool) -> dict[str, Any]:
    """Returns the losses of some steps, the first gradients, the final weights, and an evaluation."""
    from runner.engine import make_engine

    train = dataset(packed=packed).train
    rows = train.read(np.arange(train.size))
    size = -(-train.size // MULTIPLE) * MULTIPLE
    arrays: dict[str, Array] = {}
    for key, values in (rows | {WEIGHT: np.ones(train.size, np.float32)}).items():
        filled = np.zeros((size, *values.shape[1:]), values.dtype)
        filled[: train.size] = values
        arrays[key] = np.stack([filled] * STEPS)
    config = _config(engine_name, mesh, name, size)
    registry.prepare(config)
    task = make_task(config.task, train.specs)
    arrays = {key: arrays[key] for key in [*task.arrays, WEIGHT]}
    batches = HostBatches(arrays, task.weights(arrays), STEPS)
    engine = make_engine(config, DataSpec(task.arrays, task), STEPS)
    engine.build()
    shapes = {path: info.shape for path, info in engine.variables().items() if "optimizer/" not in path}
    # Values by shape and order, whatever the blocks are called.
    rng = np.random.default_rng(5)
    values = {path: rng.normal(0, 0.3, shape).astype(np.float32) for path, shape in sorted(shapes.items())}
    engine.load_state(engine.state() | values)
    gradients = engine.gradients(batches, 0)
    read = engine.train_steps(engine.place(batches), 0).read()
    first = HostBatches({key: array[:1] for key, array in arrays.items()}, batches.weights[:1], 1)
    evaluation = engine.evaluate([first])
    found = {path: value for path, value in engine.state().items() if path in shapes}
    assert set(found) == set(gradients)
    return {
        "loss": read.sums["loss"] / read.weight,
        "eval": np.array([evaluation.loss, evaluation.metrics["accuracy"]]),
        "inputs": np.array(len(task.input_names)),
        **{f"gradient/{path}": value for path, value in gradients.items()},
        **found,
    }


def _config(engine_name: str, mesh: str, name: str, batch_size: int) -> RunConfig:
    language_model = LanguageModelOptions(vocabulary=VOCABULARY)
    layout = "megatron" if mesh == "batch4_model2" else "replicated"
    return with_keys(
        RunConfig(),
        {
            "mesh": MeshConfig(axes=AXES[mesh]),
            "layout": build(LayoutConfig, search_path.content_of(f"layout/{layout}"), "layout"),
            # Plain SGD: Adam would divide the rounding of gradients near 0.
            "optimizer": OptimizerConfig("sgd", 0.1),
            "model": ModelConfig("runner.model.gpt.build", _SIZES | OPTIONS[name]),
            "task": TaskConfig("language_model", [], None, None, asdict(language_model)),
            "engine.name": engine_name,
            "dataset.batch_size": batch_size,
        },
    )


def main() -> None:
    """Runs every case of the request."""
    request = json.loads(sys.argv[2])
    found: dict[str, Any] = {}
    for mesh, name, packed in request["runs"]:
        got = on_mesh(request["engine"], mesh, name, packed=packed)
        found |= {f"{mesh}:{name}:{packed}:{path}": value for path, value in got.items()}
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
