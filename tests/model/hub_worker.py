"""Builds models of KerasHub on JAX and prints what they are as JSON: `python -m tests.model.hub_worker FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from runner.config.schema import ModelConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import ArraySpec
from runner.engine.jax.adapter import Keras3Factory, freeze_others
from runner.engine.jax.names import Names
from runner.errors import ConfigError
from runner.model import keras_hub as hub
from runner.model import stored
from runner.model.hub import private
from runner.task.base import DataSpec
from runner.task.registry import make_task

T, V = 8, 24
TARGET = "runner.model.keras_hub.build"
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": T}


def language() -> DataSpec:
    arrays = {name: ArraySpec((T,), "int32", ("sequence",)) for name in ("tokens", "segments", "label")}
    return DataSpec(arrays, make_task(TaskConfig("language_model", options={"vocabulary": V}), arrays))


def classes() -> DataSpec:
    arrays = {"tokens": ArraySpec((T,), "int32", ("sequence",)), "label": ArraySpec((), "int32", names=("a", "b"))}
    return DataSpec(arrays, make_task(TaskConfig(), arrays))


def factory(data: DataSpec, trainable: list[str] | None = None, **options: Any) -> Keras3Factory:
    return Keras3Factory(ModelConfig(TARGET, options, trainable), data, 0)


def refused(data: DataSpec, trainable: list[str] | None = None, **options: Any) -> str:
    try:
        factory(data, trainable, **options).build()
    except ConfigError as error:
        return str(error)
    return ""


def trained(model: keras.Model) -> list[str]:
    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    return [paths[id(variable)] for variable in model.trainable_variables]


def normalizing(pattern: str) -> list[str]:
    inputs = keras.Input((4,))
    x = keras.layers.BatchNormalization(center=False, scale=False, name="norm")(inputs)
    x = keras.layers.BatchNormalization(name="other")(keras.layers.Dense(3, name="first")(x))
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(x))
    freeze_others(model, [pattern, "last/bias"])
    return [layer.name for layer in model.layers[1:] if layer.trainable]


def main() -> None:
    folder, found = Path(sys.argv[1]), {}
    gpt = {"backbone": "GPT2Backbone", **SIZES}
    model = factory(language(), **gpt).build()
    found["loaded"] = [name for name in ("tensorflow", "tensorflow_text") if name in sys.modules]
    found["paths"] = list(Names(model).variables)
    found["same"] = [v.path for v in model.weights] == found["paths"]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, V, (2, T)).astype(np.int32)
    batch = {"tokens": tokens, "segments": np.asarray([[1] * T, [1] * 5 + [0] * 3], np.int32)}
    logits = np.asarray(model(batch, training=False))
    found["shape"] = list(logits.shape)

    body = next(layer for layer in model._flatten_layers() if type(layer).__name__ == "GPT2Backbone")
    stock = hub.keras_hub.models.GPT2CausalLM(backbone=body, preprocessor=None)
    given = {"token_ids": tokens, "padding_mask": (batch["segments"] > 0).astype(np.int32)}
    found["stock"] = float(np.abs(np.asarray(stock(given, training=False)) - logits).max())

    sys.modules["tensorflow"] = None  # type: ignore[assignment] # Keras's saving asks for it: ten seconds
    body.save_to_preset(str(folder / "preset"))
    tuned = factory(language(), preset=str(folder / "preset"), lora_rank=2)
    again = tuned.build()
    found["preset"] = float(np.abs(np.asarray(again(batch, training=False)) - logits).max())
    found["adapters"] = trained(again)
    abstract, _ = tuned.build_for_mesh()
    found["held"] = [isinstance(v.value, jax.Array) for v in abstract.weights].count(True)
    told, names = stored.attached(abstract), Names(abstract).variables
    kernel = "transformer_layer_0/self_attention/query/kernel"
    part = told[id(names[kernel])].read((slice(2, 4), slice(None), slice(1, 3)))
    found["part"] = bool((part == np.asarray(Names(model).variables[kernel].value)[2:4, :, 1:3]).all())
    found["told"] = sorted(path for path, variable in names.items() if id(variable) not in told)
    found["assign"] = private.KerasVariable.assign.__qualname__

    found["frozen"] = trained(factory(language(), [".*/bias", "layer_norm/.*"], **gpt).build())
    found["normalizing"] = [normalizing(pattern) for pattern in ("last/.*", ".*")]
    found["nothing"] = refused(language(), ["transformer_layer_9/.*"], **gpt)
    found["other_task"] = refused(language(), **gpt, task="TextClassifier")
    bert, _ = factory(classes(), backbone="BertBackbone", vocabulary_size=V, **SIZES).build_for_mesh()
    found["classifier"] = [type(layer).__name__ for layer in bert.layers], [list(o.shape) for o in bert.outputs]
    found["needed"] = refused(classes(), backbone="BertBackbone", **SIZES)
    found["unknown"] = refused(language(), **gpt, num_layer=2)
    found["class"] = refused(language(), **gpt | {"backbone": "GPT2Bakbone"})
    found["no_backbone"] = refused(language(), **gpt | {"backbone": "GPT2CausalLM"})
    found["task"] = refused(language(), **gpt, task="CausalML")
    retina = {"backbone": "RetinaNetBackbone", "min_level": 3, "max_level": 5, "use_p5": True}
    found["layer"] = refused(classes(), **retina, image_encoder={"class": "ResNetBakbone"})
    found["layer_needs"] = refused(classes(), **retina, image_encoder={"class": "ResNetBackbone"})
    found["positions"] = refused(language(), **gpt | {"max_sequence_length": 4})
    found["vocabulary"] = refused(language(), **gpt, vocabulary_size=20)
    found["preset_name"] = refused(language(), preset="gpt2_base")
    (folder / "foreign").mkdir()
    content = json.loads((folder / "preset" / "config.json").read_text())
    (folder / "foreign" / "config.json").write_text(json.dumps(content | {"module": "os"}))
    found["foreign"] = refused(language(), preset=str(folder / "foreign"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
