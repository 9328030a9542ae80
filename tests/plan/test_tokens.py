"""The operations of a language model's step, by hand, of the variables that models of several kinds have."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.config.schema import ModelConfig
from runner.layout import Placement
from runner.model.gpt_options import TARGET
from runner.plan.tokens import step_flops
from runner.train.run import model_flops

TOKENS, LENGTH, D, HEADS, K, F = 64, 16, 8, 2, 3, 20
ATTENTION = 12 * LENGTH * HEADS * K  # a token
SHAPES_OF_HUB = Path(__file__).parents[1] / "layout" / "keras_hub_shapes.json"


def shapes(vocabulary: int, *, head: bool = True) -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {
        "token_embedding/embeddings": (vocabulary, D),
        "position_embedding/embeddings": (LENGTH, D),
        "block_0/attention/query/kernel": (D, HEADS, K),
        "block_0/attention/key/kernel": (D, HEADS, K),
        "block_0/attention/value/kernel": (D, HEADS, K),
        "block_0/attention/output/kernel": (HEADS, K, D),
        "block_0/feedforward/up/kernel": (D, F),
        "block_0/feedforward/down/kernel": (F, D),
        "norm/scale": (D,),
    }
    return made | ({"head/kernel": (D, vocabulary)} if head else {})


INNER = 4 * D * HEADS * K + 2 * D * F + D  # parameters that are neither of the tables nor of the head


@pytest.mark.parametrize("vocabulary", [50, D, F, LENGTH])
@pytest.mark.parametrize("head", [True, False])
def test_operations_are_six_a_parameter_and_those_of_attention(vocabulary: int, head: bool) -> None:
    made = shapes(vocabulary, head=head)
    wanted = TOKENS * (6 * (INNER + D * vocabulary) + ATTENTION)
    assert step_flops(made, set(made), TOKENS, LENGTH, vocabulary) == wanted, "a table without a head is the head"


@pytest.mark.parametrize("head", [True, False])
def test_a_frozen_parameter_has_four_and_adapters_have_six(head: bool) -> None:
    query = "block_0/attention/query"
    made = shapes(50, head=head) | {f"{query}/lora_kernel_a": (D, HEADS, 2), f"{query}/lora_kernel_b": (2, K)}
    trained = {path for path in made if "lora" in path}
    wanted = TOKENS * (4 * (INNER + D * 50) + 6 * (D * HEADS * 2 + 2 * K) + ATTENTION)
    assert step_flops(made, trained, TOKENS, LENGTH, 50) == wanted


@pytest.mark.parametrize("model", ["GPT2Backbone", "GemmaBackbone", "Gemma3Backbone", "Llama3Backbone"])
def test_attention_of_a_kernel_of_either_form_is_counted_by_its_heads(model: str) -> None:
    found = json.loads(SHAPES_OF_HUB.read_text())[model]
    longer = step_flops(found, set(found), 1, LENGTH + 1, 96) - step_flops(found, set(found), 1, LENGTH, 96)
    assert longer == 12 * 4 * 8, "one block, four heads of width eight"


@pytest.mark.parametrize("depth", [0, 3])
def test_a_mixture_counts_the_experts_that_a_token_uses(depth: int) -> None:
    block: dict[str, tuple[int, ...]] = {
        "attention_norm/scale": (D,),
        "attention/query/kernel": (D, HEADS, K),
        "attention/output/kernel": (HEADS, K, D),
        "experts/router/kernel": (D, 4),
        "experts/gate/kernel": (4, D, F),
        "experts/up/kernel": (4, D, F),
        "experts/down/kernel": (4, F, D),
    }
    name = "blocks" if depth else "block_0"
    made = {f"{name}/{path}": (depth, *shape) if depth else shape for path, shape in block.items()}
    made |= {"norm/scale": (D,), "head/kernel": (D, 50)}
    whole = step_flops(made, set(made), TOKENS, LENGTH, 50)
    used = step_flops(made, set(made), TOKENS, LENGTH, 50, used_experts=0.5)
    # Of four experts two are left out.
    assert whole - used == TOKENS * 6 * 2 * 3 * D * F * max(depth, 1)


@pytest.mark.parametrize("per_token", [2, 4])
def test_a_run_counts_the_experts_of_its_own_options(per_token: int) -> None:
    made = {
        "experts/up/kernel": (4, D, F),
        "experts/gate/kernel": (4, D, F),
        "experts/down/kernel": (4, F, D),
        "head/kernel": (D, 50),
    }
    options: dict[str, Any] = {"experts": 4, "experts_per_token": per_token, "window": None}
    task: Any = SimpleNamespace(tokens=LENGTH, outputs=SimpleNamespace(units=50))
    placements = {path: Placement(path, shape, (None,) * len(shape), None) for path, shape in made.items()}
    engine: Any = SimpleNamespace(placements=placements, trainable=list(made))
    found = model_flops(ModelConfig(TARGET, options), TOKENS // LENGTH, engine, task)
    assert found == step_flops(made, set(made), TOKENS, LENGTH, 50, used_experts=per_token / 4)
