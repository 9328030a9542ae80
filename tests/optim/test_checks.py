"""The fixes that messages of `optimizer` suggest are accepted; and keys that are arguments of a user's schedule."""

from __future__ import annotations

import re

import pytest

from runner.config.schema import OptimizerConfig
from runner.errors import ConfigError
from runner.notebook.composing import compose
from runner.optim import checks
from runner.optim.schedules import learning_rate
from tests.optim.rates import falling_by_keys


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


_OWN_KEYS = "optimizer.schedule._target_=tests.optim.rates.falling_by_keys"


def test_keys_of_the_runner_s_own_schedules_reach_a_function_that_has_such_parameters() -> None:
    typed = ("optimizer.schedule.decay_steps=4.5", "optimizer.schedule.warmup_steps=3", "optimizer.schedule.power=2.0")
    config = compose(_OWN_KEYS, *typed, "optimizer.learning_rate=0.5").optimizer
    assert config.schedule.options == {"decay_steps": 4.5, "warmup_steps": 3, "power": 2.0}
    rates = [learning_rate(config, step, 10) for step in range(10)]
    expected = [falling_by_keys(step, 4.5, 2.0, 3) for step in range(10)]
    # The runner adds no warm-up of its own.
    assert rates == pytest.approx([0.5 * factor for factor in expected])


def test_a_key_at_its_default_leaves_the_function_s_own_default() -> None:
    schedule = compose(_OWN_KEYS, "optimizer.schedule.decay_steps=4").optimizer.schedule
    # `power` has no default there, so it gets that of the key; `warmup_steps` and `final_factor` have one.
    assert schedule.options == {"decay_steps": 4, "power": 1.0}
    assert schedule.warmup_steps == 0


def test_the_warm_up_precedes_a_function_that_has_no_parameter_for_it() -> None:
    halving = ("optimizer.schedule._target_=tests.optim.rates.halving", "+optimizer.schedule.every=3")
    schedule = compose(*halving, "optimizer.schedule.warmup_steps=5").optimizer.schedule
    assert (schedule.warmup_steps, schedule.options) == (5, {"every": 3})
