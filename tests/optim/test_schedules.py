"""Learning rates in Python against tf_keras's schedules, which run in a process of their own."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import OptimizerConfig, ScheduleConfig
from runner.optim.schedules import learning_rate
from tests import forks

ROOT = Path(__file__).resolve().parents[2]
TOTAL, STEPS = 50, 61
BASE = 0.05

SCHEDULES = {
    "constant": ScheduleConfig(),
    "cosine": ScheduleConfig("cosine"),
    "cosine to a tenth": ScheduleConfig("cosine", decay_steps=30, final_factor=0.1),
    "cosine with warm-up": ScheduleConfig("cosine", warmup_steps=7),
    "cosine with warm-up and span": ScheduleConfig("cosine", warmup_steps=10, decay_steps=20, final_factor=0.25),
    "cosine with warm-up of one step": ScheduleConfig("cosine", warmup_steps=1, decay_steps=20),
    "exponential": ScheduleConfig("exponential", decay_steps=10, decay_rate=0.5),
    "staircase": ScheduleConfig("exponential", decay_steps=10, decay_rate=0.5, staircase=True),
    "piecewise": ScheduleConfig("piecewise", boundaries=[10, 30], factors=[1.0, 0.1, 0.5]),
}

REFERENCE = """
import json, sys
import tf_keras
from runner.optim.stock import stock_optimizer
from runner.config.schema import OptimizerConfig, ScheduleConfig

base, total, steps, cases = json.loads(sys.stdin.read())
rates = {}
for name, fields in cases.items():
    config = OptimizerConfig(
        "adam", base, beta_1=0.9, beta_2=0.999, epsilon=1e-7, schedule=ScheduleConfig(**fields)
    )
    rate = stock_optimizer(config, total, tf_keras)._learning_rate
    rates[name] = [float(rate(step)) if callable(rate) else float(rate) for step in range(steps)]
print("RATES" + json.dumps(rates))
"""


def make(schedule: ScheduleConfig) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=BASE, schedule=schedule)


def rates(schedule: ScheduleConfig, steps: int = STEPS, total: int = TOTAL) -> list[float]:
    return [learning_rate(make(schedule), step, total) for step in range(steps)]


@pytest.fixture(scope="module")
def reference() -> dict[str, list[float]]:
    quiet = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = forks.run(
        [sys.executable, "-c", REFERENCE],
        library="tensorflow",
        given=json.dumps([BASE, TOTAL, STEPS, {name: asdict(schedule) for name, schedule in SCHEDULES.items()}]),
        env=os.environ | quiet | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout.partition("RATES")[2])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_equal_those_of_tf_keras(name: str, reference: dict[str, list[float]]) -> None:
    # tf_keras computes in float32, whose spacing at 1 is 1.2e-7. 1e-6 is relative to the rate, but where 1 + cos
    # cancels towards 0 it is relative to the base rate, whose rounding is all that is left there.
    assert rates(SCHEDULES[name]) == pytest.approx(reference[name], rel=1e-6, abs=1e-6 * BASE)


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
