"""Backbones of KerasHub: what is refused before anything loads, and what a model is that was built."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import ModelConfig, RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.errors import ConfigError
from runner.model import keras_hub
from runner.model.hub import check, options
from runner.task.base import OutputSpec
from tests import forks
from tests.configs import with_keys

GPT2 = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def config(engine: str = "jax", task: str = "language_model", **options: Any) -> RunConfig:
    made = RunConfig(model=ModelConfig(check.TARGET, options=options), task=TaskConfig(task))
    return with_keys(made, {"engine.name": engine})


def checked(made: RunConfig) -> None:
    check.check(made.model, made.dataset, made.engine.name, on_jax=made.engine.name == "jax")


REFUSED = [
    (
        {"engine": "keras_dtensor", "backbone": "GPT2Backbone", **GPT2},
        "engine=keras_dtensor: does not train models of Keras 3, which",
    ),
    ({"backbone": "GPT2Backbone", **GPT2, "lora_rank": 0}, "model.lora_rank=0: must be at least 1"),
    ({}, "model.backbone: a class or a preset is required"),
    ({"backbone": "GPT2Backbone", "preset": "somewhere"}, "the two exclude each other"),
    ({"preset": "not/here"}, "model.preset=not/here: there is no such folder; set it to a folder that"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_the_config_alone_tells_is_refused_in_a_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(config(**given))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "keras_hub" not in sys.modules


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("setup.py", "model.preset=setup.py: there is no such folder; set it to a folder that"),
        ("bare", "model.preset=bare: the folder has neither model.weights.h5 nor model.weights.json"),
        ("deep", "model.preset=deep: it can't be read (RecursionError: "),
        ("task", "model.preset=task: the folder has no valid task.json of KerasHub"),
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
    }
    for folder, contents in files.items():
        (tmp_path / folder).mkdir()
        for name, text in ({"config.json": '{"class_name": "GPT2Backbone", "config": {}}'} | contents).items():
            (tmp_path / folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        checked(config(preset=preset))
    assert said in str(caught.value)
    assert "keras_hub" not in sys.modules


def test_a_key_that_is_set_in_two_places_is_refused() -> None:
    message = r"model.config.num_layers=2: model.num_layers is set too; remove one of the two"
    with pytest.raises(ConfigError, match=message):
        keras_hub.build(None, {}, OutputSpec(8), backbone="GPT2Backbone", config={"num_layers": 2}, num_layers=1)
    assert "keras_hub" not in sys.modules


def preset_of(folder: Path, size: int, tokenizer: str | None) -> str:
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
        (50257, "GPT2Tokenizer", {}, 50257, "its tokens are not those of the preset (GPT2Tokenizer)"),
        (50257, None, {"end_token": "|"}, 50257, "its tokens are not those of the preset (50,257 of them)"),
    ],
)
def test_tokens_that_are_not_the_presets_are_refused_with_its_tokenizer_suggested(
    tmp_path: Path, size: int, own: str | None, tokens: dict[str, Any], vocabulary: int | None, said: str
) -> None:
    made = config(preset=preset_of(tmp_path / "preset", size, own))
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", **tokens)})
    made.task.options["vocabulary"] = vocabulary
    with pytest.raises(ConfigError) as caught:
        checked(made)
    assert said in str(caught.value)
    assert OWN in str(caught.value)
    assert f"dataset.tokenizer={tokens.get('tokenizer', 'bytes')}:" in str(caught.value)
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc", tokenizer="tokenizer.json")})
    checked(made)


def test_a_preset_that_is_fetched_and_has_its_tokenizer_there_refuses_bytes_too() -> None:
    made = config(preset="gpt2_base_en")
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc")})
    with pytest.raises(ConfigError, match=r"not those of the preset .gpt2_base_en."):
        checked(made)


@pytest.mark.parametrize(
    ("size", "own", "vocabulary"), [(256, None, None), (256, "ByteTokenizer", None), (384, None, 384)]
)
def test_a_preset_of_bytes_takes_bytes(tmp_path: Path, size: int, own: str | None, vocabulary: int | None) -> None:
    made = config(preset=preset_of(tmp_path / "preset", size, own))
    made = with_keys(made, {"dataset": DatasetConfig(name="pydoc")})
    made.task.options["vocabulary"] = vocabulary
    checked(made)


def test_of_tokens_that_a_preset_does_not_know_the_tokenizer_is_suggested_first() -> None:
    for units in (50000, 60000):
        expected = f"model.preset=mine: has a vocabulary of 50,257 tokens, but that of the run has {units:,}; use the"
        with pytest.raises(ConfigError, match=expected):
            options.check_vocabulary("GPT2Backbone", 50257, units, tied=True, preset="mine")


def test_keys_with_names_of_ours_are_given_below_config() -> None:
    checked(config(backbone="GPT2Backbone", config=GPT2))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return forks.answer("-m", "tests.model.hub_worker", str(tmp_path_factory.mktemp("hub")), library="jax")


ATTENTION = "transformer_layer_0/self_attention"
BUILT = {
    "loaded": [],  # of TensorFlow
    "same": True,  # variables go by Keras's own paths
    "shape": [2, 8, 24],
    "stock": 0.0,  # apart from KerasHub's language model, of tokens and segments
    "preset": 0.0,  # adapters begin at nothing
    "adapters": [f"{ATTENTION}/{layer}/lora_kernel_{side}" for layer in ("query", "value") for side in "ab"],
    "held": 0,  # values of a traced build
    "part": True,  # a preset's weights are read in parts
    "assign": "Variable.assign",  # Keras's own again
    "normalizing": [
        ["last"],
        ["norm", "first", "other", "last"],
    ],  # averages alone are frozen unless a pattern matches
}


@pytest.mark.parametrize("case", BUILT)
def test_a_model_that_was_built_is_kerashubs(found: Any, case: str) -> None:
    assert found[case] == BUILT[case]


def test_patterns_choose_what_is_trained_and_the_preset_has_all_but_adapters(found: Any) -> None:
    assert found["frozen"]
    assert all(path.endswith("/bias") or path.startswith("layer_norm/") for path in found["frozen"])
    assert {f"{ATTENTION}/query/kernel", "token_embedding/embeddings"} <= set(found["paths"])
    assert found["told"]
    assert all("lora_kernel" in path for path in found["told"])


def test_a_task_is_kerashubs_own_where_there_is_one(found: Any) -> None:
    layers, shapes = found["classifier"]
    assert "BertTextClassifier" in layers
    assert shapes == [[None, 2]]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("needed", "model.vocabulary_size: BertBackbone needs a value for it; add +model.vocabulary_size=..."),
        ("unknown", "model.num_layer: unknown option (GPT2Backbone takes vocabulary_size, num_layers"),
        ("class", "did you mean GPT2Backbone?"),
        ("no_backbone", "model.backbone=GPT2CausalLM: must be a Backbone of KerasHub"),
        ("task", "did you mean GPT2CausalLM?"),
        ("layer", "model.image_encoder.class=ResNetBakbone: must be a Layer of KerasHub"),
        ("layer_needs", "model.image_encoder.input_conv_filters: ResNetBackbone needs a value"),
        ("positions", "dataset.sequence_length=8: must be at most 4, the number of positions of GPT2Backbone"),
        ("vocabulary", "task.vocabulary=24: must be 20, the vocabulary size of GPT2Backbone"),
        ("preset_name", "did you mean gpt2_base_en?"),
        ("nothing", "model.trainable[0]=transformer_layer_9/.*: must match a whole variable path"),
        ("other_task", "KerasHub has no TextClassifier for GPT2Backbone, but GPT2CausalLM"),
        ("foreign", "its config names module os, but only Keras's own modules are imported"),
    ],
)
def test_what_only_kerashub_tells_is_one_line_of_the_build(found: Any, case: str, said: str) -> None:
    assert said in found[case]
    assert "\n" not in found[case]
