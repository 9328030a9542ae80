"""The fixes that messages of `optimizer` suggest are accepted; and a user's schedule."""

from __future__ import annotations

import re

import pytest

from runner.cli.notebook import compose
from runner.config.schema import OptimizerConfig
from runner.engine.optim import checks
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("rate", "factor", "restores", "fix"),
    [
        (0.001, 0.1, 40, "set trainer.nan_restores=34"),
        (0.001, 1e-38, 3, "set trainer.nan_rate_factor=0.5"),
        # Half of these rates underflows too.
        (1.2e-38, 0.9, 3, "raise optimizer.learning_rate"),
        (1e-40, 0.9, 3, "raise optimizer.learning_rate"),
    ],
)
def test_restores_that_underflow(rate: float, factor: float, restores: int, fix: str) -> None:
    config = OptimizerConfig(learning_rate=rate)
    with pytest.raises(ConfigError, match=re.escape(f"; {fix}") + "$"):
        checks.check_restores(config, factor, restores)
    match = re.fullmatch(r"set trainer\.(\w+)=([\d.]+)", fix)
    if match is not None and match[1] == "nan_restores":
        checks.check_restores(config, factor, int(match[2]))
    elif match is not None:
        checks.check_restores(config, float(match[2]), restores)


@pytest.mark.parametrize(
    ("rate", "fix"), [(0.1, "set optimizer.weight_decay=0.004"), (500.0, "lower optimizer.learning_rate")]
)
def test_decay_that_flips_signs(rate: float, fix: str) -> None:
    config = OptimizerConfig("adamw", rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7, weight_decay=20.0)
    with pytest.raises(ConfigError, match=re.escape(f"; {fix}") + "$"):
        checks.check(config, runs_keras_3=True)


def test_the_warm_up_precedes_a_function_that_has_no_parameter_for_it() -> None:
    halving = ("optimizer.schedule._target_=tests.optim.rates.halving", "+optimizer.schedule.every=3")
    schedule = compose(*halving, "optimizer.schedule.warmup_steps=5").optimizer.schedule
    assert (schedule.warmup_steps, schedule.options) == (5, {"every": 3})
