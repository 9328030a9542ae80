"""Runs in a process of its own: trains on a mesh, or by a stock `fit`, or tells what is refused.

Usage: python -m tests.model.contract_worker OUT JSON, with JSON {"engine": "jax" or "keras_dtensor", "axes": {...} or
null for the library's own `fit`, "layout": a preset, "combine": whether all-reduces are merged, "runs": [{"name",
"target", "options", "optimizer", "accumulate", "padded"}]}; or {"engine", "refused": [{"target", "options",
"accumulate", "remainder"}]}, which writes JSON in place of arrays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig, RunConfig
from runner.engine import make_engine, registry
from runner.errors import ConfigError, EngineError
from tests.configs import with_keys
from tests.engine import cases

STEPS, BATCH, PADDING = 6, 32, 5
DATA = cases.data()
MODELS = "tests.model.contract_models"


def config_of(request: dict[str, Any], run: dict[str, Any]) -> RunConfig:
    """Returns the config of one run."""
    optimizer = cases.OPTIMIZERS[run.get("optimizer", "adam")]
    config = cases.config(request.get("axes") or {"batch": 1}, optimizer, f"{MODELS}.{run['target']}")
    config = with_keys(
        config,
        {
            "model.options": run.get("options", {}),
            "engine.name": request["engine"],
            "engine.combine_all_reduces": request.get("combine", True),
            "dataset.batch_size": BATCH,
            "dataset.remainder": run.get("remainder", "drop"),
            "trainer.accumulate_steps": run.get("accumulate", 1),
        },
    )
    preset = request.get("layout", "replicated")
    layout = build(LayoutConfig, search_path.content_of(f"layout/{preset}"), "layout")
    return with_keys(config, {"layout": layout})


def batches(run: dict[str, Any]) -> Any:
    """Returns the batches; with `padded` the last examples of the last are padding."""
    made = cases.batches(STEPS, BATCH)
    if not run.get("padded"):
        return made
    weights = made.weights.copy()
    weights[-1, -PADDING:] = 0
    images = made.arrays["image"].copy()
    images[-1, -PADDING:] = images[0, :PADDING]
    return cases.stack(images, made.arrays["label"], weights)


def on_mesh(config: RunConfig, run: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains one engine; returns its state and losses."""
    engine: Any = make_engine(config, DATA, STEPS)
    engine.build()
    held = batches(run)
    metrics = engine.train_steps(engine.place(held), 0).read()
    return {**engine.state(), "loss": metrics.sums["loss"] / metrics.weight}


def by_fit(config: RunConfig, run: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains the same builder's model by the library's own `fit`."""
    from runner.optim.stock import stock_optimizer

    held = batches(run)
    images, labels = held.arrays["image"].astype(np.float32) / 255, held.arrays["label"]
    count = STEPS * BATCH - (PADDING if run.get("padded") else 0)
    keras, model, named = plain(config)
    model.compile(
        optimizer=stock_optimizer(config.optimizer, STEPS, keras),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = images.reshape(-1, *images.shape[2:])[:count], labels.reshape(-1)[:count]
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    return {path: np.asarray(variable) for path, variable in named(model).items()}


def plain(config: RunConfig) -> tuple[Any, Any, Any]:
    """Returns the library, the model on one device, and what names its variables."""
    if config.engine.name == "jax":
        import keras

        from runner.engine.jax.adapter import Keras3Factory
        from runner.engine.jax.names import Names

        model = Keras3Factory(config.model, DATA, config.trainer.seed).build()
        return keras, model, lambda made: Names(made).variables
    import tf_keras

    from runner.engine.dtensor.adapters.keras import KerasAdapter
    from runner.engine.dtensor.adapters.paths import named_variables

    tf_keras.backend.experimental.enable_tf_random_generator()
    return tf_keras, KerasAdapter(config.model, DATA, config.trainer.seed).plain(), named_variables


def refusal(config: RunConfig) -> str:
    """Returns the line that refuses a model; empty where it is built."""
    try:
        if config.engine.name == "jax":
            from runner.engine.jax.adapter import Keras3Factory, check_model

            check_model(Keras3Factory(config.model, DATA, config.trainer.seed).build(), config, DATA)
        else:
            from runner.engine.dtensor.adapters.keras import KerasAdapter

            adapter = KerasAdapter(config.model, DATA, config.trainer.seed)
            adapter.check(adapter.plain(), config)
    except (ConfigError, EngineError) as error:
        return str(error)
    return ""


def main() -> None:
    """Does what the request says."""
    request = json.loads(sys.argv[2])
    registry.load(config_of(request, {"target": "constrained"}))
    if "refused" in request:
        found = [refusal(config_of(request, run)) for run in request["refused"]]
        Path(sys.argv[1]).write_text(json.dumps(found))
        return
    arrays: dict[str, np.ndarray] = {}
    for run in request["runs"]:
        config = config_of(request, run)
        got = on_mesh(config, run) if request.get("axes") else by_fit(config, run)
        arrays |= {f"{run['name']}:{name}": value for name, value in got.items()}
    np.savez(sys.argv[1], **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
