"""Learning rates by step. `tests/parity` compares training with Keras's schedules, on devices of both engines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import OptimizerConfig, ScheduleConfig
from runner.engine.optim.checks import check_rates
from runner.engine.optim.schedules import (
    learning_rate,
    turning_points,
)
from runner.errors import ConfigError

TOTAL, STEPS = 50, 61
BASE = 0.05

SCHEDULES = {
    "constant": ScheduleConfig(),
    "cosine": ScheduleConfig("cosine"),
    "cosine with warm-up": ScheduleConfig("cosine", warmup_steps=7),
    "cosine with warm-up and span": ScheduleConfig("cosine", warmup_steps=10, decay_steps=20, final_factor=0.25),
    "exponential": ScheduleConfig("exponential", decay_steps=10, decay_rate=0.5),
    "staircase": ScheduleConfig("exponential", decay_steps=10, decay_rate=0.5, staircase=True),
    "piecewise": ScheduleConfig("piecewise", boundaries=[10, 30], factors=[1.0, 0.1, 0.5]),
    "linear": ScheduleConfig("linear"),
    "polynomial": ScheduleConfig("polynomial", power=2.0, final_factor=0.1),
    "cosine with warm-up from a tenth": ScheduleConfig("cosine", warmup_steps=7, initial_factor=0.1),
}

# Those that Keras has no equal of. Its restarts are compared in a test of their own.
OWN = {
    "constant with warm-up": ScheduleConfig("constant", warmup_steps=7),
    "linear with warm-up": ScheduleConfig("linear", warmup_steps=7, initial_factor=0.25),
    "exponential with warm-up": ScheduleConfig("exponential", warmup_steps=7, decay_steps=10, decay_rate=0.5),
    "piecewise with warm-up": ScheduleConfig("piecewise", warmup_steps=7, boundaries=[10, 30], factors=[0.5, 1, 0.1]),
    "restarts": ScheduleConfig("cosine_restarts", decay_steps=7),
    "restarts of one length": ScheduleConfig("cosine_restarts", decay_steps=7, cycle_factor=1.0, peak_factor=0.5),
    "restarts with warm-up": ScheduleConfig(
        "cosine_restarts", warmup_steps=5, decay_steps=4, cycle_factor=1.5, peak_factor=0.8, final_factor=0.1
    ),
    "inverse square root": ScheduleConfig("inverse_sqrt", warmup_steps=7),
    "warm-up, stable, decay": ScheduleConfig("warmup_stable_decay", warmup_steps=7, final_factor=0.1),
    "one cycle": ScheduleConfig("one_cycle", initial_factor=0.04),
    "custom": ScheduleConfig("custom", target="tests.optim.rates.halving", options={"every": 10}),
    "custom rate with warm-up": ScheduleConfig("custom", warmup_steps=7, target="tests.optim.rates.falling"),
}


def make(schedule: ScheduleConfig) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=BASE, schedule=schedule)


def rates(schedule: ScheduleConfig, steps: int = STEPS, total: int = TOTAL) -> list[float]:
    return [learning_rate(make(schedule), step, total) for step in range(steps)]


def test_constant_is_the_base_rate_at_every_step() -> None:
    assert rates(ScheduleConfig()) == [BASE] * STEPS


def test_warm_up_rises_linearly_from_0_to_the_base_rate() -> None:
    rising = rates(ScheduleConfig("cosine", warmup_steps=10))
    assert rising[:11] == pytest.approx([BASE * step / 10 for step in range(11)])
    assert max(rising) == rising[10]


@pytest.mark.parametrize("warmup", [0, 10])
def test_cosine_is_half_way_at_half_the_span_and_ends_at_the_final_factor(warmup: int) -> None:
    falling = rates(ScheduleConfig("cosine", warmup_steps=warmup, final_factor=0.2))
    half = warmup + (TOTAL - warmup) // 2
    assert falling[half] == pytest.approx(BASE * (1 + 0.2) / 2)
    assert falling[TOTAL:] == pytest.approx([BASE * 0.2] * (STEPS - TOTAL))


def test_cosine_counts_decay_steps_after_the_warm_up() -> None:
    falling = rates(ScheduleConfig("cosine", warmup_steps=10, decay_steps=20))
    assert falling[30:] == pytest.approx([0.0] * (STEPS - 30))
    assert falling[29] > 0


def test_exponential_halves_every_decay_steps_and_the_staircase_only_there() -> None:
    smooth = rates(SCHEDULES["exponential"])
    stairs = rates(SCHEDULES["staircase"])
    assert smooth[::10] == pytest.approx([BASE * 0.5**n for n in range(7)])
    assert smooth[5] == pytest.approx(BASE * math.sqrt(0.5))
    assert stairs == pytest.approx([BASE * 0.5 ** (step // 10) for step in range(STEPS)])


def test_piecewise_changes_after_its_boundary() -> None:
    steps = rates(SCHEDULES["piecewise"])
    assert steps[10] == pytest.approx(BASE)
    assert steps[11] == steps[30] == pytest.approx(BASE * 0.1)
    assert steps[31] == pytest.approx(BASE * 0.5)


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


def test_restarts_equal_the_formula_of_keras_in_double_precision() -> None:
    # Keras's CosineDecayRestarts itself divides in float32, and so takes some first steps of a cycle for the last of
    # the one before.
    first, longer, higher, final = 7, 2.0, 0.8, 0.1
    schedule = ScheduleConfig(
        "cosine_restarts", decay_steps=first, cycle_factor=longer, peak_factor=higher, final_factor=final
    )
    found = rates(schedule, 1000, 1000)
    for step in range(1000):
        done = step / first
        cycle = math.floor(math.log(1 - done * (1 - longer) + 1e-12) / math.log(longer))
        share = (done - (1 - longer**cycle) / (1 - longer)) / longer**cycle
        expected = (1 - final) * 0.5 * higher**cycle * (1 + math.cos(math.pi * share)) + final
        assert found[step] == pytest.approx(BASE * expected, rel=1e-9), step


def test_restarts_of_one_length_begin_again_at_every_multiple_of_a_large_count() -> None:
    schedule = ScheduleConfig("cosine_restarts", decay_steps=97, cycle_factor=1.0)
    steps = np.arange(97 * 100_000, 97 * 100_000 + 194, dtype=np.float32)
    found = learning_rate(make(schedule), steps, 10**8, np)
    assert found[0] == found[97] == pytest.approx(BASE)
    assert found[96] == pytest.approx(found[193]) == pytest.approx(rates(schedule, 97)[96], rel=1e-4)


def test_one_cycle_rises_for_three_tenths_of_the_run_and_falls_to_its_end() -> None:
    cycle = rates(OWN["one cycle"])
    assert cycle[0] == pytest.approx(BASE * 0.04)
    assert max(cycle) == cycle[15] == pytest.approx(BASE)
    assert cycle[:16] == sorted(cycle[:16])
    assert cycle[15:] == sorted(cycle[15:], reverse=True)
    # PyTorch's formula: half a cosine between the ends of each phase.
    assert cycle[5] == pytest.approx(BASE * (1 + (0.04 - 1) / 2 * (1 + math.cos(math.pi * 5 / 15))))
    assert cycle[TOTAL] == 0


def test_warmup_stable_decay_stays_at_the_base_rate_until_a_tenth_is_left() -> None:
    found = rates(OWN["warm-up, stable, decay"])
    assert found[7:46] == pytest.approx([BASE] * 39)
    assert found[46:51] == pytest.approx([BASE * (1 - 0.9 * number / 5) for number in range(1, 6)])


def test_inverse_square_root_is_that_of_the_steps_over_the_warm_up() -> None:
    # Vaswani et al., 2017: min(step / warmup, sqrt(warmup / step)).
    found = rates(OWN["inverse square root"])
    assert found[1:] == pytest.approx([BASE * min(step / 7, math.sqrt(7 / step)) for step in range(1, STEPS)])


@pytest.mark.parametrize("name", ["linear with warm-up", "exponential with warm-up"])
def test_a_schedule_after_a_warm_up_is_the_schedule_later(name: str) -> None:
    after = replace(OWN[name], decay_steps=20)
    alone = replace(after, warmup_steps=0, initial_factor=0.0)
    assert rates(after)[7:] == pytest.approx(rates(alone)[:-7])
    rising = [BASE * (after.initial_factor + (1 - after.initial_factor) * step / 7) for step in range(8)]
    assert rates(after)[:8] == pytest.approx(rising)


def test_a_custom_function_returns_a_factor_or_with_a_learning_rate_the_rate() -> None:
    assert rates(OWN["custom"], 50) == pytest.approx([BASE * 0.5 ** (step // 10) for step in range(50)])
    late = rates(OWN["custom rate with warm-up"], 50)
    assert late[7:] == pytest.approx([BASE * (1 - 0.5 * step / TOTAL) for step in range(43)])


@given(
    name=st.sampled_from(["linear", "cosine", "warmup_stable_decay", "one_cycle", "polynomial", "inverse_sqrt"]),
    warmup=st.integers(1, 30),
    total=st.integers(1, 100),
)
def test_the_turning_points_have_the_largest_and_the_smallest_rate(name: str, warmup: int, total: int) -> None:
    config = make(ScheduleConfig(name, warmup_steps=warmup))
    found = rates(config.schedule, total, total)
    turning = [found[step] for step in turning_points(config, total)]
    assert (min(turning), max(turning)) == (min(found), max(found))


@pytest.mark.parametrize(
    ("schedule", "total", "said"),
    [
        (ScheduleConfig("custom", target="tests.optim.rates.negative"), 5, "returns -1 in step 3"),
        (ScheduleConfig("custom", target="tests.optim.rates.broken"), 5, "fails in step 2 .ZeroDivisionError"),
        (ScheduleConfig("custom", target="tests.optim.rates.none"), 5, "module tests.optim.rates has no 'none'"),
        (ScheduleConfig("custom", target="tests.optim.rates.positional"), 5, "this one takes count; write def pos"),
        (ScheduleConfig("custom", target="tests.optim.rates.halving"), 5, "add .optimizer.schedule.every=..."),
        (
            ScheduleConfig("custom", target="tests.optim.rates.halving", options={"every": 2}),
            10**7,
            "at most 1,000,000",
        ),
        (ScheduleConfig("cosine_restarts", decay_steps=1, cycle_factor=1.0001), 10**5, "at most 200 cycles"),
        (ScheduleConfig("cosine_restarts", decay_steps=1, peak_factor=1e3), 10**6, "overflows float32"),
    ],
)
def test_a_schedule_that_a_run_of_this_length_can_t_have_is_rejected(
    schedule: ScheduleConfig, total: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_rates(OptimizerConfig(learning_rate=1e30 if "overflows" in said else BASE, schedule=schedule), total)
