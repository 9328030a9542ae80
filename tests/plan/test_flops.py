"""What a plan says of a transformer's step is what XLA counts in its program, split tokens and mixtures too."""

import importlib.util
import json

import pytest

from tests import forks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COMMON = [
    *("engine=jax", "dataset=pydoc", "task=language_model", "engine.compilation_cache=false"),
    *("dataset.batch_size=16", "dataset.sequence_length=64"),
]
GPT = [*COMMON, "model=gpt", "model.depth=2", "model.dim=128"]
HUB = [*COMMON, "model=keras_hub", "+model.num_layers=2", "+model.num_query_heads=4", "+model.num_key_value_heads=2"]
LLAMA = [*HUB, "model.backbone=Llama3Backbone", "+model.hidden_dim=128", "+model.intermediate_dim=256"]
MIXTRAL = [
    *HUB,
    *("model.backbone=MixtralBackbone", "+model.hidden_dim=128"),
    *("+model.intermediate_dim=256", "+model.num_experts=4"),
]
# Large enough that XLA would sum whole logits, of which a device has 64 MiB of its own.
LOGITS = ["mesh=batch4_model2", "layout=fsdp_megatron", "dataset.sequence_length=512", "task.vocabulary=32768"]
CASES = {
    "gpt": [*GPT, "mesh=batch8"],
    "gpt-sequence": [*GPT, "mesh=batch2_sequence4", "layout=sequence"],
    "gpt-megatron": [*GPT, "mesh=batch2_model4", "layout=megatron"],
    "gpt-experts": [
        *GPT,
        *("model.activation=swiglu", "model.bias=false", "model.experts=4", "model.feedforward=256"),
        *("mesh=batch2_experts4", "layout=experts"),
    ],
    "llama-sequence": [*LLAMA, "mesh=batch2_sequence4", "layout=sequence"],
    "llama-lora": [*LLAMA, "mesh=batch8", "model.lora_rank=4"],
    "llama-frozen": [*LLAMA, "mesh=batch8", "model.trainable=[.*layer_1.*]"],
    "mixtral": [*MIXTRAL, "mesh=batch8"],
    "mixtral-experts": [*MIXTRAL, "mesh=batch2_experts4", "layout=experts"],
}
WHOLE = [*GPT, *LOGITS, "model.depth=1", "model.dim=1024", "model.fused_head=false"]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    # An import would keep every later test of the session from being forked, see `tests.forks`.
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("needs the extra hub")
    asked = json.dumps(CASES | {"whole logits": WHOLE})
    return dict(forks.answer("-m", "tests.plan.flops_worker", asked, library="jax"))


@pytest.mark.parametrize("name", CASES)
def test_the_operations_of_a_device_are_those_that_xla_counts(found: dict[str, dict[str, float]], name: str) -> None:
    # XLA counts norms, softmax and the optimizer too, which are a share of so small a model: 2 to 10%.
    ratio = found[name]["counted"] / found[name]["estimated"]
    assert 1.0 < ratio < 1.15, ratio


def test_whole_logits_are_not_summed_over_the_axis_in_which_a_head_is_stored(
    found: dict[str, dict[str, float]],
) -> None:
    logits = 16 // 4 * 512 * 32768 // 2 * 4
    # Seven arrays of a device's logits; XLA's own choice held eleven, and those of all examples among them.
    assert found["whole logits"]["temporaries"] < 9 * logits
