"""Options of KerasHub's classes: those that the data determines, and objects that have options of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config import import_path
from runner.data.base import ArraySpec
from runner.errors import did_you_mean, invalid

# The key of a mapping among the options that names the class which the mapping describes.
CLASS = "class"

# Names of the parameter for the size of the vocabulary, in different classes.
SIZES = ("vocabulary_size", "vocab_size", "text_vocab_size")
IMAGE = ("image_shape", "input_shape")
_FROM_DATA = (*SIZES, *IMAGE)
# Parameters of every Keras layer. The run sets them, not the config.
_OF_LAYERS = ("self", "dtype", "name", "trainable")


def with_data(
    described_class: Any, config: Mapping[str, Any], inputs: Mapping[str, ArraySpec], vocabulary: int | None
) -> dict[str, Any]:
    """Returns a class's options, with the size of the vocabulary and the shape of an image from the data.

    Raises:
      ConfigError: a required parameter has no value, or an option is not one of the class.
    """
    options = without_unset(config)
    images = [list(spec.shape) for spec in inputs.values() if len(spec.shape) == 3]
    for parameter in import_path.parameters(described_class.__init__):
        if parameter in SIZES and vocabulary is not None:
            options.setdefault(parameter, vocabulary)
        elif parameter in IMAGE and len(images) == 1:
            options.setdefault(parameter, images[0])
    _check(described_class, options, "model")
    return options


def _check(described_class: Any, options: Mapping[str, Any], key: str) -> None:
    # Its `**kwargs` are those of every layer.
    import_path.check_options(
        key, described_class.__name__, described_class.__init__, options, _OF_LAYERS, takes_any=False
    )


def find(hub: Any, name: object, key: str, base: Any) -> Any:
    """Returns a model or layer of KerasHub. Raises ConfigError if there is none."""
    known = {**vars(hub.layers), **vars(hub.models)}
    known = {own: value for own, value in known.items() if isinstance(value, type) and issubclass(value, base)}
    if str(name) not in known:
        fix = did_you_mean(str(name), known, "https://keras.io/keras_hub/api lists them")
        raise invalid(key, name, problem=f"must be a {base.__name__} of KerasHub {hub.__version__}", fix=fix)
    return known[str(name)]


def without_unset(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options without those that are null and set by the data."""
    return {key: value for key, value in config.items() if value is not None or key not in _FROM_DATA}


def check_vocabulary(name: str, size: int, units: int, *, tied: bool, preset: str | None = None) -> None:
    """Checks that a language model has all tokens of the run, and only these.

    A model that is not tied to its vocabulary may have more. A `preset` determines the size.
    """
    if size == units or (size > units and not tied):
        return
    if preset is not None:
        # No value of task.vocabulary would be right for tokens other than the preset's.
        raise invalid(
            "model.preset",
            preset,
            problem=f"has a vocabulary of {size:,} tokens, but that of the run has {units:,}",
            fix="use the preset's tokenizer in dataset.tokenizer, or, if that has fewer tokens than the model, set "
            f"task.vocabulary={size} too",
        )
    relation = "must be" if tied else "must be at most"
    fix = f"set task.vocabulary={size}, or remove the key of the backbone's vocabulary"
    raise invalid("task.vocabulary", units, problem=f"{relation} {size:,}, the vocabulary size of {name}", fix=fix)


def check_positions(backbone: Any, layer_class: Any, length: int) -> None:
    """Checks that a text is no longer than the learned positions of a backbone. Raises ConfigError if it is longer."""
    for layer in backbone._flatten_layers():
        if isinstance(layer, layer_class) and length > layer.sequence_length:
            limit = layer.sequence_length
            problem = f"must be at most {limit}, the number of positions of {type(backbone).__name__}"
            raise invalid(
                "dataset.sequence_length", length, problem=problem, fix=f"set dataset.sequence_length={limit}"
            )


def instantiated(hub: Any, keras: Any, value: Any, key: str = "model") -> Any:
    """Returns an option's value, with its described objects created.

    Each mapping that has a `class` is replaced by an object of that KerasHub class.

    Raises:
      ConfigError: there is no such class, or it does not take the options.
    """
    if isinstance(value, Mapping):
        options = {str(name): instantiated(hub, keras, inner, f"{key}.{name}") for name, inner in value.items()}
        if CLASS not in options:
            return options
        # A part of a model is itself a model, or a layer.
        described_class = find(hub, options.pop(CLASS), f"{key}.{CLASS}", keras.layers.Layer)
        _check(described_class, options, key)
        return described_class(**options)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [instantiated(hub, keras, item, f"{key}[{index}]") for index, item in enumerate(value)]
    return value
