"""Options of KerasHub's classes: those that the data determines, and objects that have options of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runner.data.base import ArraySpec
from runner.errors import invalid
from runner.model.hub import catalog

# The key of a mapping among the options that names the class which the mapping describes.
CLASS = "class"

# Names of the parameter for the size of the vocabulary, in different classes.
SIZES = ("vocabulary_size", "vocab_size", "text_vocab_size")
IMAGE = ("image_shape", "input_shape")
_FROM_DATA = (*SIZES, *IMAGE)


def with_data(
    name: str, config: Mapping[str, Any], inputs: Mapping[str, ArraySpec], vocabulary: int | None
) -> dict[str, Any]:
    """Returns a class's options, with the size of the vocabulary and the shape of an image from the data.

    Args:
      name: public name of the class.
      config: options in the config.
      inputs: specs of the model's inputs.
      vocabulary: number of tokens; None: the data does not determine it.

    Raises:
      ConfigError: a required parameter has no value.
    """
    parameters = catalog.parameters(name)
    options = without_unset(config)
    if parameters is None:
        return options
    images = [list(spec.shape) for spec in inputs.values() if len(spec.shape) == 3]
    for parameter in parameters.names:
        if parameter in SIZES and vocabulary is not None:
            options.setdefault(parameter, vocabulary)
        elif parameter in IMAGE and len(images) == 1:
            options.setdefault(parameter, images[0])
    check_required(name, parameters, options)
    return options


def without_unset(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options without those that are null and set by the data."""
    return {key: value for key, value in config.items() if value is not None or key not in _FROM_DATA}


def check_vocabulary(
    name: str, size: int, units: int, *, tied: bool, preset: str | None = None, key: str | None = None
) -> None:
    """Checks that a language model has all tokens of the run, and only these.

    A model that is not tied to its vocabulary may have more.

    Args:
      name: the backbone's class.
      size: the size of its vocabulary.
      units: of the task, which is the size of the run's vocabulary.
      tied: the model computes logits for its whole vocabulary.
      preset: value of `model.preset`, which determines the size; None: there is no preset.
      key: the key of the option that sets the size, if it is known.

    Raises:
      ConfigError: the sizes don't match.
    """
    is_valid = size == units or (size > units and not tied)
    if is_valid:
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
    if key is not None and size < units:
        fix = f"set {key}={units}, or remove it"
    else:
        fix = f"set task.vocabulary={size}"
    relation = "must be at most"
    if tied:
        relation = "must be"
    raise invalid("task.vocabulary", units, problem=f"{relation} {size:,}, the vocabulary size of {name}", fix=fix)


def check_required(
    name: str,
    parameters: catalog.Parameters,
    options: Collection[str],
    from_data: Collection[str] = (),
    key: str | None = None,
) -> None:
    """Checks that all required parameters of a class have a value.

    Args:
      name: the name of the class.
      parameters: the parameters of the class.
      options: names that have a value.
      from_data: names that the data will determine.
      key: the key of the mapping that describes an object of the class; None: it is the backbone.

    Raises:
      ConfigError: names all that are missing.
    """
    with_value = {*options, *from_data}
    missing = [parameter for parameter in parameters.required if parameter not in with_value]
    if not missing:
        return
    if key is None:
        class_key = "model.backbone"
        overrides = map("+model.{}=...".format, missing)
        fix = f"add {' '.join(overrides)}"
    else:
        class_key = f"{key}.{CLASS}"
        fix = f"add {', '.join(missing)} to {key}"
    verb = "have"
    if len(missing) == 1:
        verb = "has"
    raise invalid(
        class_key,
        name,
        problem=f"it needs {', '.join(parameters.required)}, of which {', '.join(missing)} {verb} no value",
        fix=fix,
    )


def instantiated(hub: Any, value: Any) -> Any:
    """Returns an option's value, with its described objects created.

    Each mapping that has a `class` is replaced by an object of that KerasHub class.

    Args:
      hub: the module `keras_hub`.
      value: plain, as in the config.
    """
    if isinstance(value, Mapping):
        options = {str(key): instantiated(hub, inner) for key, inner in value.items()}
        if CLASS not in options:
            return options
        name = options.pop(CLASS)
        # A part of a model is itself a model, or a layer.
        described_class = getattr(hub.models, name, None) or getattr(hub.layers, name)
        return described_class(**options)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [instantiated(hub, item) for item in value]
    return value
