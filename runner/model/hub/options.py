"""Keys of KerasHub's classes: what the run's data tells of them, and objects that have keys of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runner.data.base import ArraySpec
from runner.errors import invalid
from runner.model.hub import catalog

CLASS = "class"  # names what a mapping among the keys describes
SIZES = ("vocabulary_size", "vocab_size", "text_vocab_size")  # what classes call the number of tokens
IMAGE = ("image_shape", "input_shape")
FROM_DATA = (*SIZES, *IMAGE)


def filled(
    name: str, config: Mapping[str, Any], inputs: Mapping[str, ArraySpec], vocabulary: int | None
) -> dict[str, Any]:
    """Returns a class's keys with those that the data tells: the vocabulary's size, an image's shape.

    Args:
      name: public, of the class.
      config: keys that are given.
      inputs: specs of what the model is called with.
      vocabulary: number of tokens; None: the data does not tell.

    Raises:
      ConfigError: a key that the class needs is neither given nor told.
    """
    taken = catalog.taken(name)
    found = given(config)
    if taken is None:
        return found
    images = [list(spec.shape) for spec in inputs.values() if len(spec.shape) == 3]
    for key in taken.known:
        if key in SIZES and vocabulary is not None:
            found.setdefault(key, vocabulary)
        elif key in IMAGE and len(images) == 1:
            found.setdefault(key, images[0])
    check_needed(name, taken, found)
    return found


def given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that have a value: null is none for those that the data tells."""
    return {key: value for key, value in config.items() if value is not None or key not in FROM_DATA}


def check_vocabulary(name: str, size: int, units: int, *, tied: bool, key: str | None = None) -> None:
    """Checks that a language model knows the run's tokens, and answers for those alone.

    Args:
      name: the backbone's class.
      size: tokens that it knows.
      units: tokens of the run's task.
      tied: it answers for all that it knows.
      key: of the class, that says so; None: a preset does.

    Raises:
      ConfigError: they differ.
    """
    if size < units or (tied and size > units):
        fix = f"set task.vocabulary={size}"
        if key is None:  # of other tokens than the preset's no vocabulary is right
            fix = f"use the preset's tokenizer in dataset.tokenizer; if it has fewer tokens than the model, {fix} too"
        elif size < units:
            fix = f"set {key}={units}, or leave it out"
        raise invalid("task.vocabulary", units, problem=f"the {size:,} tokens that {name} knows", fix=fix)


def check_needed(
    name: str, taken: catalog.Taken, found: Collection[str], told: Collection[str] = (), key: str | None = None
) -> None:
    """Checks that a class gets the keys that it needs.

    Args:
      name: the class's.
      taken: what it takes.
      found: keys that are given.
      told: keys that the data will tell.
      key: of the mapping that describes an object of the class; None: it is the backbone.

    Raises:
      ConfigError: names all that are missing.
    """
    missing = [each for each in taken.needed if each not in found and each not in told]
    if missing:
        fix = " ".join(f"+model.{each}=..." for each in missing) if key is None else f"{', '.join(missing)} to {key}"
        raise invalid(
            "model.backbone" if key is None else f"{key}.{CLASS}",
            name,
            problem=f"it needs {', '.join(taken.needed)}, of which {', '.join(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} no value",
            fix=f"add {fix}",
        )


def made(hub: Any, value: Any) -> Any:
    """Returns a key's value, of which mappings with a `class` become objects of KerasHub's class, and lists stay.

    Args:
      hub: the module `keras_hub`.
      value: plain, as the config has it.
    """
    if isinstance(value, Mapping):
        keys = {str(key): made(hub, each) for key, each in value.items()}
        if CLASS not in keys:
            return keys
        name = keys.pop(CLASS)
        kind = getattr(hub.models, name, None) or getattr(hub.layers, name)
        return kind(**keys)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [made(hub, each) for each in value]
    return value
