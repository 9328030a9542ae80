"""Transformers whose sizes coincide, whose projections are shared or lie beside others: what each variable is."""

from __future__ import annotations

import pytest

from runner.config.schema import LayoutConfig
from runner.layout import auto
from runner.layout.specs import Shape
from tests.layout.test_transformers import AXES, M, gpt, placed, specs

MOE = "block_0/moe/experts"


def mixture(width: int = 32, hidden: int = 32) -> dict[str, Shape]:
    """A block of attention and of 4 experts whose gate and up are one kernel, as GPT-OSS."""
    kept = {path: shape for path, shape in gpt().items() if path.startswith("block_0/attention")}
    return kept | {
        f"{MOE}/gate_up_proj": (4, width, 2 * hidden),
        f"{MOE}/gate_up_proj_bias": (4, 2 * hidden),
        f"{MOE}/down_proj": (4, hidden, width),
        f"{MOE}/down_proj_bias": (4, width),
    }


@pytest.mark.parametrize("hidden", [16, 32, 48])
@pytest.mark.parametrize(("preset", "axis"), [("megatron", M), ("experts", "experts"), ("auto", M)])
def test_a_mixture_with_gate_and_up_in_one_kernel_is_split_by_experts_as_wide_as_the_model_too(
    hidden: int, preset: str, axis: str
) -> None:
    found = specs(mixture(hidden=hidden), preset, **{"batch": 2, axis: 4})
    assert {path.removeprefix(f"{MOE}/"): spec for path, spec in found.items() if path.startswith(MOE)} == {
        "gate_up_proj": (axis, None, None),
        "gate_up_proj_bias": (axis, None),
        "down_proj": (axis, None, None),
        "down_proj_bias": (axis, None),
    }


def test_auto_does_not_say_of_a_large_variable_by_another_name_that_each_device_needs_it() -> None:
    table: dict[str, Shape] = {"mixer/weights": (64, 64), "mixer/tensor": (4, 8, 8, 8), "norm/scale": (2048,)}
    reasons = {each.path: each.reason for each in auto.propose(table, LayoutConfig(auto=True), AXES)}
    assert reasons["mixer/weights"] == "no principle fits a variable of shape [64, 64] in mixer"
    assert reasons["mixer/tensor"] == "no principle fits a variable of shape [4, 8, 8, 8] in mixer"
    assert reasons["norm/scale"] == "no kernel: each device needs all of it"
