"""One rule says whether a step fits: what JAX reserves of a GPU, and for plans and advice alike."""

from dataclasses import replace

import pytest

from runner.config.schema import MeshConfig
from runner.errors import ConfigError, EngineError
from runner.plan import forecast, limits, rows
from runner.plan.advise import ranking
from runner.plan.base import Forecast, MemoryPart
from tests.advise.test_candidates import START
from tests.configs import with_keys
from tests.plan import cases
from tests.plan.test_hardware import GIB, hardware

LARGEST = "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"


def planned(gib: float, card: str = "h100", *, is_transformer: bool = True) -> Forecast:
    """Returns the forecast of a step that has a state of 1 GiB and needs so much by estimates."""
    config = with_keys(cases.config("mlp", "batch8", "fsdp"), {"hardware": hardware(card)})
    config = with_keys(config, {"plan": replace(config.plan, compiler="arithmetic")})
    parts = (
        MemoryPart("weights", GIB, "counted"),
        MemoryPart("optimizer state", 0, "counted"),
        MemoryPart("activations", round((gib - 1) * GIB), "estimated"),
    )
    return cases.judged(config, parts, (), forecast.Work(1e12), is_transformer=is_transformer)


@pytest.mark.parametrize(
    ("card", "gib", "start", "setting"),
    [
        ("h100", 59.0, "fits: 59.0 GiB of 59.3 GiB per device of hardware=h100, 333 MiB free", ""),
        ("h100", 60.0, f"fits with {LARGEST}: 60.0 GiB of 75.1 GiB per device of hardware=h100, 15.1", LARGEST),
        ("h100", 78.0, f"may not fit with {LARGEST}: 78.0 GiB of 75.1 GiB per device of hardware=h100, 2.86", LARGEST),
        ("h100", 100.0, f"does not fit with {LARGEST}: 100 GiB of 75.1 GiB per device of hardware=h100, 24", LARGEST),
        # XLA leaves that much of a TPU to programs, and JAX reserves nothing.
        ("v5e", 15.5, "fits: 15.5 GiB of 15.8 GiB per device of hardware=v5e, 256 MiB free", ""),
    ],
)
def test_plan_and_advice_compare_with_what_jax_reserves(
    monkeypatch: pytest.MonkeyPatch, card: str, gib: float, start: str, setting: str
) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    verdict = planned(gib, card)
    line, more, *_ = rows.verdict(cases.plan(forecast=verdict))
    assert line.startswith(start)
    taken = f"  JAX takes 75% of 79.1 GiB by default; to let it take more, set {LARGEST}"
    if setting:
        taken = "  by default, JAX takes 75% of 79.1 GiB: set this variable for the run"
    assert (more == taken) == (card == "h100" and not start.startswith("does not"))
    advised = ranking.of_forecast(START, verdict)
    assert advised.verdict == start.partition(":")[0].removesuffix(f" with {LARGEST}")
    assert advised.setting == setting


def test_a_share_that_the_user_sets_is_the_limit_and_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "0.9")
    assert planned(70.0).setting == "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9"
    assert planned(72.0).verdict == "may not fit"
    monkeypatch.setenv(limits.VARIABLE, "0.5")
    stated = rows.verdict(cases.plan(forecast=planned(30.0)))[1]
    assert stated == f"  JAX takes 50% of 79.1 GiB, as {limits.VARIABLE} says"
    assert planned(45.0).verdict == "may not fit"
    assert planned(30.0).setting == ""
    monkeypatch.setenv(limits.VARIABLE, "most")
    with pytest.raises(ConfigError, match="XLA_PYTHON_CLIENT_MEM_FRACTION=most: must be above 0"):
        planned(30.0)


def test_an_estimate_of_convolutions_may_be_far_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    verdict = planned(300.0, is_transformer=False)
    assert verdict.verdict == ranking.of_forecast(START, verdict).verdict == "may not fit"


class ResourceExhaustedError(Exception):
    """As TensorFlow's type is named."""


def wrapped(error: Exception) -> EngineError:
    outer = EngineError("a call failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.5GiB."),
            ": could not allocate 1.5GiB",
        ),
        (ResourceExhaustedError("{{function_node}} OOM when allocating tensor with shape[8,8]"), ""),
        (wrapped(MemoryError()), ""),
    ],
)
def test_an_error_of_too_little_memory_is_one_line_that_says_what_to_do(error: Exception, amount: str) -> None:
    line = f"out of memory (OOM) on a GPU device of the mesh{amount}; lower dataset.batch_size, or "
    with pytest.raises(EngineError) as raised, limits.explained(MeshConfig(device="gpu")):
        raise error
    assert str(raised.value).startswith(line)


@pytest.mark.parametrize("error", [EngineError("the loss is nan"), ValueError("out of range")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, limits.explained(MeshConfig()):
        raise error
    assert raised.value is error
