"""Runs in a process of its own: tells what is refused of models, as a list in JSON.

Usage: python -m tests.model.contract_worker ENGINE JSON, with JSON [{"target", "options", "accumulate", "remainder",
"evaluated"}].
"""

import json
import sys
from typing import Any

import numpy as np

from runner.config.schema import RunConfig
from runner.engine import make_engine, registry
from runner.engine.common import Engine
from runner.errors import ConfigError, EngineError
from tests.configs import with_keys
from tests.engine import cases

DATA = cases.data()
# Of a task without samples, the logits that are asked for are the outputs.
DATA.task.next_logits = lambda ops, outputs, batch: outputs  # type: ignore[method-assign]  # noqa: ARG005


def config_of(engine: str, model: dict[str, Any]) -> RunConfig:
    config = cases.config({"batch": 1}, None, f"tests.model.contract_models.{model['target']}")
    return with_keys(
        config,
        {
            "model.options": model.get("options", {}),
            "engine.name": engine,
            "dataset.batch_size": 32,
            "dataset.remainder": model.get("remainder", "drop"),
            "trainer.accumulate_steps": model.get("accumulate", 1),
        },
    )


def refusal(config: RunConfig, *, evaluated: bool) -> str:
    """Returns the line that refuses a model; empty where it is built, and evaluated if that is asked."""
    try:
        if config.engine.name == "jax" or evaluated:
            engine = make_engine(config, DATA, 1)
            engine.build()
            if evaluated:
                check_unchanged(engine)
        else:
            from runner.engine.dtensor.adapters.keras import KerasAdapter

            adapter = KerasAdapter(config.model, DATA, config.trainer.seed)
            adapter.check(adapter.plain(), pads=config.dataset.remainder == "pad")
    except (ConfigError, EngineError) as error:
        return str(error)
    return ""


def check_unchanged(engine: Engine) -> None:
    """Evaluates a batch and asks for its logits, which must write no variable."""
    before = engine.state()
    batch = cases.batches(1, 32)
    engine.evaluate([batch])
    engine.next_logits(batch)
    after = engine.state()
    assert [path for path, value in before.items() if not np.array_equal(value, after[path])] == []


def main() -> None:
    engine, models = sys.argv[1], json.loads(sys.argv[2])
    configs = [config_of(engine, model) for model in models]
    registry.prepare(configs[0])
    registry.load(engine)
    said = []
    for model, config in zip(models, configs, strict=True):
        said.append(refusal(config, evaluated=model.get("evaluated", False)))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
