"""What of a transformer's options is refused from the config alone, and in which words."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.config.schema import ModelConfig
from runner.config.schema_data import DatasetConfig
from runner.data.base import ArraySpec
from runner.errors import ConfigError
from runner.host import paths
from runner.model import gpt, gpt_options
from runner.task.base import OutputSpec

TOKENS = {"tokens": ArraySpec((16,), "int32", ("sequence",))}


EXPERTS = {"experts": 4, "activation": "swiglu", "bias": False}


def preset(**options: Any) -> ModelConfig:
    held = dict(OmegaConf.load(paths.conf_dir() / "model" / "gpt.yaml"))
    return ModelConfig(held.pop("_target_"), {**held, **options})


@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_the_preset_passes_on_both_engines(engine: str) -> None:
    gpt_options.check(preset(), on_jax=engine == "jax")


@pytest.mark.parametrize(
    ("options", "engine", "said"),
    [
        ({"heads": 5}, "jax", "model.heads=5: must divide model.dim=128; set model.dim=130"),
        ({"key_value_heads": 3}, "jax", "model.key_value_heads=3: must divide model.heads=4"),
        ({"heads": 128, "positions": "rotary"}, "jax", "model.positions=rotary: needs an even size per head, but it"),
        ({"head_dim": 15, "positions": "rotary"}, "jax", "but it is 15: RoPE rotates pairs; set model.head_dim=16"),
        ({"norm": "batch"}, "jax", "model.norm=batch: must be one of layer, rms; set model.norm=layer"),
        ({"remat": "names"}, "jax", "model.remat=names: names no activation to keep; set model.saved=[attended]"),
        ({"saved": ["up"]}, "jax", "model.saved=[up]: has no effect without model.remat; set model.remat=names"),
        ({"remat": "names", "saved": ["down"]}, "jax", "model.saved=down: must be one of input, query"),
        ({"remat": "names", "offloaded": ["gate"]}, "jax", "model.offloaded=[gate]: model.activation=gelu has no"),
        ({"remat": "names", "saved": ["key"], "offloaded": ["key"]}, "jax", "model.saved has key too; remove key"),
        ({"remat": "full"}, "keras_dtensor", "model.remat=full: needs Keras on JAX"),
        ({"scan": True}, "keras_dtensor", "model.scan=true: needs Keras on JAX"),
        ({"experts": 1}, "jax", "model.experts=1: must be at least 2"),
        ({"router_loss": 0.02}, "jax", "model.router_loss=0.02: has no effect without model.experts; set model.expe"),
        ({**EXPERTS, "experts_per_token": 5}, "jax", "must be at most model.experts=4; set it to 4 or less"),
        ({"experts_per_token": 3}, "jax", "model.experts_per_token=3: has no effect without model.experts"),
        ({**EXPERTS, "bias": True}, "jax", "experts have a gate and no biases; set model.activation=swiglu"),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(options: dict[str, Any], engine: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        gpt_options.check(preset(**options), on_jax=engine == "jax")
    assert said in str(raised.value)
    if engine == "jax":  # the builder says the same to whoever calls it
        with pytest.raises(ValueError, match="; "):
            gpt.build(SimpleNamespace(ops=None), TOKENS, OutputSpec(64), **options)


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "said"),
    [
        ({**TOKENS, "image": ArraySpec((8, 8, 1), "float32")}, OutputSpec(64), {}, "it needs token ids"),
        ({"tokens": ArraySpec((16,), "float32")}, OutputSpec(64), {}, "it needs token ids"),
        (TOKENS, OutputSpec(None), {}, "set task.vocabulary"),
        (TOKENS, OutputSpec(64), {"max_length": 8}, "model.max_length=8 must be at least the row's 16 tokens"),
    ],
)
def test_what_only_the_data_tells_is_refused_by_the_builder(
    inputs: dict[str, ArraySpec], outputs: OutputSpec, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        gpt.build(SimpleNamespace(ops=None), inputs, outputs, **options)


def test_offloading_needs_memory_beside_the_host_s() -> None:
    config = preset(remat="names", offloaded=["input"])
    gpt_options.check_device(config, "gpu")
    gpt_options.check_device(preset(remat="names", saved=["input"]), "cpu")
    with pytest.raises(ConfigError, match=r"^model\.offloaded=\[input\]: on a CPU, device memory is host memory"):
        gpt_options.check_device(config, "cpu")


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 0.0),
        # Of 4 D + 2 F = 12 D with F = 4 D, the last product has 4 D, and no gradient needs its result.
        ({"remat": "full"}, 2 / 3),
        # Queries, keys and values are 3 D; the hidden units are 4 D.
        ({"remat": "names", "saved": ["query", "key"], "offloaded": ["value"]}, 5 / 12),
        ({"remat": "names", "saved": ["query", "key", "value", "attention_output", "up"]}, 0.0),
        # Of 4 D + 3 F with D = 4096 and F = 10,944, the multiple of 64 above 8/3 D.
        ({"remat": "names", "saved": ["up", "gate"], "activation": "swiglu", "dim": 4096}, 16384 / 49216),
        # Of 4 D + 3 E F with D = 128, E = 4 and F = 384, the multiple of 64 above 8/3 D.
        ({"remat": "names", "saved": ["up", "gate"], **EXPERTS}, 512 / 5120),
    ],
)
def test_a_step_computes_again_what_is_not_kept(options: dict[str, Any], share: float) -> None:
    assert gpt_options.recomputed_share(preset(**options).options) == pytest.approx(share)


def test_rows_longer_than_the_models_places_are_refused_from_the_config_alone() -> None:
    text, images = DatasetConfig("pydoc", sequence_length=16), DatasetConfig("digits")
    gpt_options.check_rows(preset(), text)
    gpt_options.check_rows(preset(max_length=16), text)
    gpt_options.check_rows(preset(max_length=8), images)
    with pytest.raises(ConfigError) as raised:
        gpt_options.check_rows(preset(max_length=8), text)
    assert str(raised.value) == (
        "model.max_length=8: must be at least dataset.sequence_length=16, the tokens of a row; set "
        "model.max_length=16, or remove it"
    )


def test_padding_would_count_in_the_loss_of_a_router() -> None:
    balanced = preset(**EXPERTS, router_loss=0.02)
    gpt_options.check_rows(balanced, DatasetConfig("pydoc"))
    gpt_options.check_rows(preset(**EXPERTS), DatasetConfig("pydoc", remainder="pad"))
    with pytest.raises(
        ConfigError, match=r"^dataset\.remainder=pad: padding would count in model\.router_loss; set d"
    ):
        gpt_options.check_rows(balanced, DatasetConfig("pydoc", remainder="pad"))


@pytest.mark.parametrize(
    ("scan", "depth", "on_jax", "scanned"),
    [
        (None, gpt_options.DEEP, True, True),
        (None, gpt_options.DEEP - 1, True, False),  # paths and initial values as they were
        (None, gpt_options.DEEP, False, False),
        (False, 2 * gpt_options.DEEP, True, False),  # as recorded runs have it
        (True, 1, True, True),
    ],
)
def test_deep_models_are_scanned_where_nothing_is_said(
    scan: bool | None, depth: int, on_jax: bool, scanned: bool
) -> None:
    assert gpt_options.scans(scan, depth, on_jax=on_jax) is scanned
