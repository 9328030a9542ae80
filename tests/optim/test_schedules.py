"""Learning rates by step. `tests/parity` compares training with Keras's schedules, on devices of both engines."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import OptimizerConfig, ScheduleConfig
from runner.engine.optim.schedules import learning_rate
from tests import forks

TOTAL, STEPS = 50, 61
BASE = 0.05

# Those that Keras has no equal of.
OWN = {
    "linear with warm-up": ScheduleConfig("linear", warmup_steps=7, initial_factor=0.25),
    "exponential with warm-up": ScheduleConfig("exponential", warmup_steps=7, decay_steps=10, decay_rate=0.5),
}


def make(schedule: ScheduleConfig) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=BASE, schedule=schedule)


def rates(schedule: ScheduleConfig, steps: int = STEPS, total: int = TOTAL) -> list[float]:
    return [learning_rate(make(schedule), step, total) for step in range(steps)]


def test_cosine_counts_decay_steps_after_the_warm_up() -> None:
    falling = rates(ScheduleConfig("cosine", warmup_steps=10, decay_steps=20))
    assert falling[30:] == pytest.approx([0.0] * (STEPS - 30))
    assert falling[29] > 0


@given(
    warmup=st.integers(0, 30),
    decay=st.none() | st.integers(1, 60),
    final=st.floats(0, 1),
    total=st.integers(1, 100),
    step=st.integers(0, 200),
)
def test_cosine_never_leaves_0_to_the_base_rate(
    warmup: int, decay: int | None, final: float, total: int, step: int
) -> None:
    schedule = ScheduleConfig("cosine", warmup_steps=warmup, decay_steps=decay, final_factor=final)
    assert 0 <= learning_rate(make(schedule), step, total) <= BASE * (1 + 1e-12)  # a few roundings of float64


@pytest.mark.parametrize("name", ["linear with warm-up", "exponential with warm-up"])
def test_a_schedule_after_a_warm_up_is_the_schedule_later(name: str) -> None:
    after = replace(OWN[name], decay_steps=20)
    alone = replace(after, warmup_steps=0, initial_factor=0.0)
    assert rates(after)[7:] == pytest.approx(rates(alone)[:-7])
    rising = [BASE * (after.initial_factor + (1 - after.initial_factor) * step / 7) for step in range(8)]
    assert rates(after)[:8] == pytest.approx(rising)


def test_verify_compares_with_keras_own_schedules_where_keras_has_them() -> None:
    found = forks.answer("-m", "tests.optim.schedules_worker", library=forks.JAX)
    assert found == {"tabulated": ["linear after a warm-up"], "differing": []}
