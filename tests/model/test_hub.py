"""Backbones of KerasHub: what is refused before anything loads, and what a model is that was built."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import ModelConfig, RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.errors import ConfigError
from runner.model.hub import catalog, check, options
from tests import forks
from tests.backbones_of_hub import tiny
from tests.configs import with_keys

ROOT = Path(__file__).parents[2]
GPT2 = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def config(engine: str = "jax", task: str = "language_model", **options: Any) -> RunConfig:
    made = RunConfig(model=ModelConfig(check.TARGET, options=options), task=TaskConfig(task))
    return with_keys(made, {"engine.name": engine})


REFUSED = [
    (
        {"engine": "keras_dtensor", "backbone": "GPT2Backbone", **GPT2},
        "engine=keras_dtensor: does not train models of Keras 3, which",
    ),
    ({"backbone": "GPT2Bakbone"}, "did you mean GPT2Backbone?"),
    ({"backbone": "GPT2CausalLM"}, "model.backbone=GPT2CausalLM: must be a backbone of KerasHub"),
    ({"backbone": "GPT2Backbone", **GPT2, "num_layer": 2}, "keys of GPT2Backbone are vocabulary_size, num_layers"),
    ({"backbone": "GPT2Backbone", "num_layers": 1}, "of which num_heads, hidden_dim, intermediate_dim have no value"),
    ({"backbone": "GPT2Backbone", **GPT2, "task": "classification"}, "it needs vocabulary_size"),
    ({"backbone": "GPT2Backbone", **GPT2, "lora_rank": 0}, "model.lora_rank=0: must be an integer of at least 1"),
    ({}, "model.backbone: a class or a preset is required"),
    ({"backbone": "GPT2Backbone", "preset": "somewhere"}, "the two exclude each other"),
    ({"preset": "not/here"}, "model.preset=not/here: there is no such folder; set it to a folder that"),
    (
        {"backbone": "RetinaNetBackbone", "image_encoder": {"class": "ResNetBakbone"}, "min_level": 3}
        | {"max_level": 5, "use_p5": True},
        "model.image_encoder.class=ResNetBakbone:",
    ),
    (
        {"backbone": "RetinaNetBackbone", "image_encoder": {"class": "ResNetBackbone"}, "min_level": 3}
        | {"max_level": 5, "use_p5": True},
        "add input_conv_filters, input_conv_kernel_sizes",
    ),
    (
        {"backbone": "GPT2Backbone", **GPT2, "dropout": {"class": ["a"]}},
        "model.dropout.class=[a]: must be a model or layer of KerasHub",
    ),
    ({"backbone": "GPT2Backbone", **GPT2, "dropout": {"class": None}}, "model.dropout.class=null:"),
    (
        {"backbone": "GPT2Backbone", **GPT2, "config": {"num_layers": 3}},
        "model.config.num_layers=3: the key is set twice, model.num_layers is 1; remove model.num_layers or",
    ),
    (
        {"backbone": "GPT2Backbone", **GPT2, "vocabulary_size": None, "task": "classification"},
        "of which vocabulary_size has no value",
    ),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_the_config_alone_tells_is_refused_in_a_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check.check(config(**given), ["jax"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "keras_hub" not in sys.modules


LONG = {"backbone": "GPT2Backbone", **GPT2}


@pytest.mark.parametrize(
    ("options", "tokens", "said"),
    [
        (
            {**LONG, "max_sequence_length": 64},
            {},
            "dataset.sequence_length=256: must be at most 64, the number of positions of",
        ),
        (LONG, {"sequence_length": 2048}, "set dataset.sequence_length=1024, or +model.max_sequence_length=2048"),
        (
            {**LONG, "vocabulary_size": 512},
            {},
            "task.vocabulary=256: must be 512, the vocabulary size of GPT2Backbone",
        ),
        (
            {**LONG, "vocabulary_size": 256},
            {"end_token": "|"},
            "task.vocabulary=257: must be 256, the vocabulary size",
        ),
        ({**LONG, "vocabulary_size": 100}, {}, "set model.vocabulary_size=256, or remove it"),
    ],
)
def test_a_text_that_does_not_fit_the_backbone_is_refused(
    options: dict[str, Any], tokens: dict[str, Any], said: str
) -> None:
    made = config(**options)
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", **tokens)})
    with pytest.raises(ConfigError) as caught:
        check.check(made, ["jax"])
    assert said in str(caught.value)


def test_text_that_fits_or_whose_tokens_only_the_tokenizer_tells_is_taken() -> None:
    made = config(**LONG, vocabulary_size=512)
    made = with_keys(
        made, {"dataset": DatasetConfig(name="pydoc", tokenizer="bpe", vocabulary_size=512, sequence_length=1024)}
    )
    check.check(made, ["jax"])
    rotary = {"num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 16}
    made = config(backbone="Llama3Backbone", num_layers=1, vocabulary_size=256, **rotary)
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", sequence_length=100_000)})
    check.check(made, ["jax"])


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        (
            "nowhere",
            "model.preset=nowhere: there is no such folder, and KerasHub has no preset of this name",
        ),
        ("gpt2_base", "did you mean gpt2_base_en?"),
        ("setup.py", "model.preset=setup.py: there is no such folder; set it to a folder that"),
        ("bare", "model.preset=bare: the folder has neither model.weights.h5 nor model.weights.json"),
        ("deep", "model.preset=deep: it can't be read (RecursionError: "),
        ("task", "model.preset=task: the folder has no valid task.json of KerasHub"),
        ("index", "model.preset=index: its model.weights.json is not a Keras index of weights"),
        ("part", "model.preset=part: the folder has no model_00001.weights.h5, which its model.weights"),
    ],
)
def test_a_preset_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.py").touch()
    files = {
        "bare": {},
        "deep": {"config.json": "[" * 100_000},
        "task": {"task.json": '{"class_name": "GPT2CausalLM"}', "model.weights.h5": ""},
        "index": {"model.weights.json": "[]"},
        "part": {"model.weights.json": '{"weight_map": {"a": ["model_00001.weights.h5"]}}'},
    }
    for folder, contents in files.items():
        (tmp_path / folder).mkdir()
        for name, text in ({"config.json": '{"class_name": "GPT2Backbone", "config": {}}'} | contents).items():
            (tmp_path / folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        check.check(config(preset=preset), ["jax"])
    assert said in str(caught.value)
    assert "keras_hub" not in sys.modules


def preset_of(folder: Path, size: int, tokenizer: str | None) -> str:
    """Writes what `check` reads of a preset, and returns its folder."""
    folder.mkdir()
    content = {"class_name": "GPT2Backbone", "config": {"vocabulary_size": size, "max_sequence_length": 1024}}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.weights.h5").touch()
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"class_name": tokenizer, "config": {}}))
    return str(folder)


OWN = "use the preset's tokenizer: dataset.tokenizer=tokenizer.json"


@pytest.mark.parametrize(
    ("size", "own", "tokens", "vocabulary", "said"),
    [
        (50257, "GPT2Tokenizer", {}, None, "it gives 256 tokens, but the preset's vocabulary has 50,257"),
        (50257, "GPT2Tokenizer", {}, 50257, "it gives 256 tokens, but the preset's vocabulary has 50,257"),
        (50257, None, {"end_token": "|"}, 50257, "it gives 257 tokens, but the preset's vocabulary has 50,257"),
        (256, "GPT2Tokenizer", {}, None, "its token ids are bytes, but the preset has the tokens of GPT2Tok"),
        (50257, "GPT2Tokenizer", {"tokenizer": "bpe"}, 50257, "it trains a new vocabulary, but the preset"),
    ],
)
def test_tokens_that_are_not_the_presets_are_refused_with_its_tokenizer_suggested(
    tmp_path: Path, size: int, own: str | None, tokens: dict[str, Any], vocabulary: int | None, said: str
) -> None:
    made = config(preset=preset_of(tmp_path / "preset", size, own))
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", **tokens)})
    made.task.options["vocabulary"] = vocabulary
    with pytest.raises(ConfigError) as caught:
        check.check(made, ["jax"])
    assert said in str(caught.value)
    assert OWN in str(caught.value)
    assert f"dataset.tokenizer={tokens.get('tokenizer', 'bytes')}:" in str(caught.value)
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", tokenizer="tokenizer.json")})
    check.check(made, ["jax"])


def test_a_preset_that_is_fetched_and_has_its_tokenizer_there_refuses_bytes_too() -> None:
    made = config(preset="gpt2_base_en")
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc")})
    with pytest.raises(ConfigError, match="the preset has the tokens of gpt2_base_en"):
        check.check(made, ["jax"])


@pytest.mark.parametrize(
    ("size", "own", "vocabulary"), [(256, None, None), (256, "ByteTokenizer", None), (384, None, 384)]
)
def test_a_preset_of_bytes_takes_bytes(tmp_path: Path, size: int, own: str | None, vocabulary: int | None) -> None:
    made = config(preset=preset_of(tmp_path / "preset", size, own))
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc")})
    made.task.options["vocabulary"] = vocabulary
    check.check(made, ["jax"])


def test_of_tokens_that_a_preset_does_not_know_the_tokenizer_is_suggested_first() -> None:
    for units in (50000, 60000):
        expected = f"model.preset=mine: has a vocabulary of 50,257 tokens, but that of the run has {units:,}; use the"
        with pytest.raises(ConfigError, match=expected):
            options.check_vocabulary("GPT2Backbone", 50257, units, tied=True, preset="mine")


def test_an_unknown_task_is_refused() -> None:
    made = config(backbone="GPT2Backbone", **GPT2)
    made.model.options["task"] = "CausalML"
    with pytest.raises(ConfigError, match="did you mean CausalLM"):
        check.check(made, ["jax"])


def test_null_is_no_value_of_what_the_data_tells() -> None:
    keys = {**GPT2, "vocabulary_size": None, "dropout": 0.1}
    check.check(config(backbone="GPT2Backbone", **keys), ["jax"])
    found = options.with_data("GPT2Backbone", keys, {}, vocabulary=24)
    assert found == {**GPT2, "vocabulary_size": 24, "dropout": 0.1}
    with pytest.raises(ConfigError, match="of which vocabulary_size has no value"):
        options.with_data("GPT2Backbone", keys, {}, vocabulary=None)


def test_keys_with_names_of_ours_are_given_below_config() -> None:
    check.check(config(backbone="GPT2Backbone", config=GPT2), ["jax"])


@pytest.mark.nightly
def test_every_backbone_tells_its_keys_without_an_import() -> None:
    assert {"Llama3Backbone", "XLMRobertaBackbone", "CLIPTextEncoder", "ViTBackbone"} <= set(tiny.names())
    assert all(catalog.parameters(name) for name in tiny.names())
    llama = catalog.parameters("Llama3Backbone")  # whose constructor is its base's
    assert llama is not None
    assert "num_key_value_heads" in llama.required


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = [sys.executable, "-m", "tests.model.hub_worker", str(tmp_path_factory.mktemp("hub"))]
    done = forks.run(command, library="jax", cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_variables_go_by_kerass_own_paths_and_tensorflow_is_not_loaded(found: Any) -> None:
    assert found["same"]
    assert "transformer_layer_0/self_attention/query/kernel" in found["paths"]
    assert "token_embedding/embeddings" in found["paths"]
    assert found["loaded"] == []


def test_tokens_and_segments_give_what_the_stock_language_model_does(found: Any) -> None:
    assert found["shape"] == [2, 8, 24]
    assert found["stock"] == 0.0


def test_a_presets_weights_are_read_in_parts(found: Any) -> None:
    assert found["preset"] == 0.0, "adapters begin at nothing"
    assert found["held"] == 0, "a traced build holds no value"
    assert found["part"]
    assert all("lora_kernel" in path for path in found["told"]), "all but the adapters lie in the preset"
    assert found["assign"] == "Variable.assign", "Keras's own again"


def test_only_adapters_are_trained(found: Any) -> None:
    assert found["adapters"] == [
        f"transformer_layer_0/self_attention/{layer}/lora_kernel_{side}"
        for layer in ("query", "value")
        for side in "ab"
    ]


def test_patterns_choose_what_is_trained(found: Any) -> None:
    assert found["frozen"]
    assert all(path.endswith("/bias") or path.startswith("layer_norm/") for path in found["frozen"])
    assert "model.trainable[0]=transformer_layer_9/.*: must match a whole variable path" in found["nothing"]


def test_a_layer_of_averages_alone_is_frozen_unless_a_pattern_catches_them(found: Any) -> None:
    assert found["normalizing"][0] == ["last"]
    assert found["normalizing"][1] == ["norm", "first", "other", "last"]


def test_a_task_is_kerashubs_own_where_there_is_one(found: Any) -> None:
    layers, shapes = found["classifier"]
    assert "BertTextClassifier" in layers
    assert shapes == [[None, 2]]
    assert "KerasHub has no TextClassifier for GPT2Backbone, but GPT2CausalLM" in found["other_task"]
    assert "vocabulary_size" in found["needed"]


def test_a_preset_that_would_import_other_modules_is_refused(found: Any) -> None:
    assert "its config names module os, but only Keras's own modules are imported" in found["foreign"]
