"""A user's schedule."""

from __future__ import annotations

from runner.cli.notebook import compose


def test_the_warm_up_precedes_a_function_that_has_no_parameter_for_it() -> None:
    halving = ("optimizer.schedule._target_=tests.optim.rates.halving", "+optimizer.schedule.every=3")
    schedule = compose(*halving, "optimizer.schedule.warmup_steps=5").optimizer.schedule
    assert (schedule.warmup_steps, schedule.options) == (5, {"every": 3})
