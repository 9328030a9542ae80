"""What a custom step does not go with is refused before any library is loaded, in one line."""

from typing import Any

import pytest

from runner.config.schema import GroupConfig, RunConfig
from runner.engine import checks
from runner.errors import ConfigError
from tests.configs import with_keys

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"engine.name": "keras_dtensor"}, "engine=keras_dtensor: can't compute task=step; set engine=jax"),
    ({"engine.name": "core_dtensor"}, "set engine=jax"),
    (
        {"engine.state": "master", "engine.precision": "bfloat16"},
        "engine.state=master: acts on the run's own model or optimizer, but",
    ),
    ({"trainer.accumulate_steps": 2}, "trainer.accumulate_steps=2: acts on"),
    ({"optimizer.ema.decay": 0.9}, "optimizer.ema.decay=0.9: acts on"),
    ({"optimizer.gradient_norm": "global"}, "optimizer.gradient_norm=global: acts on"),
    ({"optimizer.schedule.plateau.metric": "auto"}, "plateau.metric=auto: acts on"),
    ({"optimizer.groups": [GroupConfig(".*/bias", decay=False)]}, "optimizer.groups=[.*/bias]: acts on"),
    ({"optimizer.name": "optax"}, "optimizer=optax: task=step gives build an optimizer of Keras"),
    ({"layout.from_model": True}, "layout.from_model=true"),
]


@pytest.mark.parametrize(("keys", "said"), REFUSED, ids=[next(iter(keys)) for keys, _ in REFUSED])
def test_what_acts_on_the_runs_own_optimizer_or_model_is_refused(keys: dict[str, Any], said: str) -> None:
    config = with_keys(RunConfig(), {"engine.name": "jax", "task.name": "step"} | keys)
    with pytest.raises(ConfigError) as refused:
        checks.check(config)
    assert said in str(refused.value)
