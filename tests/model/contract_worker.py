"""Runs in a process of its own: tells what is refused of models, as a list in JSON.

Usage: python -m tests.model.contract_worker ENGINE JSON, with JSON [{"target", "options", "accumulate", "remainder"}].
"""

from __future__ import annotations

import json
import sys
from typing import Any

from runner.config.schema import RunConfig
from runner.engine import make_engine, registry
from runner.errors import ConfigError, EngineError
from tests.configs import with_keys
from tests.engine import cases

DATA = cases.data()


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


def refusal(config: RunConfig) -> str:
    """Returns the line that refuses a model; empty where it is built."""
    try:
        if config.engine.name == "jax":
            make_engine(config, DATA, 1).build()
        else:
            from runner.engine.dtensor.adapters.keras import KerasAdapter

            adapter = KerasAdapter(config.model, DATA, config.trainer.seed)
            adapter.check(adapter.plain(), pads=config.dataset.remainder == "pad")
    except (ConfigError, EngineError) as error:
        return str(error)
    return ""


def main() -> None:
    engine, models = sys.argv[1], json.loads(sys.argv[2])
    configs = [config_of(engine, model) for model in models]
    registry.prepare(configs[0])
    registry.load(engine)
    print(json.dumps([refusal(config) for config in configs]))


if __name__ == "__main__":
    main()
