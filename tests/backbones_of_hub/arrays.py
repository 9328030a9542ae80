"""Builds backbones without values, and writes arrays that each takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from runner.engine.jax import private
from runner.model import keras_hub as hub
from runner.model.hub import options
from tests.backbones_of_hub import tiny

_EXAMPLES, _CLASSES = 64, 4


def built(name: str) -> Any:
    """Returns a backbone of tiny sizes, whose variables have shapes and no values."""
    made: list[Any] = []

    def build() -> None:
        kind = getattr(hub.keras_hub.models, name)
        made.append(kind(**options.instantiated(hub.keras_hub, keras, tiny.config(name))))

    private.reset_layer_names()
    try:
        jax.eval_shape(build)
    except jax.errors.JAXTypeError:  # it computes with values as it is built
        build()
    return made[0]


def kind_of(name: str, wanted: Any) -> str:
    """Returns `language`, `text`, `image` or `arrays`: what a run gives to a backbone of these inputs."""
    if isinstance(wanted, list | tuple):
        return kind_of(name, {each.name: each for each in wanted})
    if not isinstance(wanted, Mapping):
        return "image" if len(wanted.shape) == 4 else "arrays"
    derived = {
        f"{side}{key}"
        for side in ("", "encoder_", "decoder_")
        for key in ("token_ids", "padding_mask", "position_ids")
    }
    if {*wanted} <= {*derived, "segment_ids"}:
        stem = name.removesuffix("Backbone")
        is_language = hasattr(hub.keras_hub.models, f"{stem}CausalLM") or "decoder_token_ids" in wanted
        return "language" if is_language else "text"
    return "arrays"


def filled(name: str, spec: Any, rng: np.random.Generator, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns values for an input of a backbone; a dim that is left open is as large as `tiny.OPEN` says."""
    left = next((size for begin, size in sizes.items() if name.startswith(begin)), tiny.SEQUENCE)
    shape = (_EXAMPLES, *(left if size is None else int(size) for size in spec.shape[1:]))
    if np.dtype(spec.dtype).kind == "f":
        return rng.normal(size=shape).astype(np.float32)
    if "mask" in name:
        return np.ones(shape, np.int32)
    most = tiny.VOCABULARY if "token" in name else 2
    return rng.integers(min(1, most - 2), most, shape).astype(np.int32)


def write(name: str, backbone: Any, folder: Path) -> str:
    """Writes a backbone's arrays, with labels, as name.npz, and returns the kind of case."""
    rng, wanted = np.random.default_rng(1), backbone.input
    kind, label = kind_of(name, wanted), rng.integers(0, _CLASSES, _EXAMPLES).astype(np.int32)
    tokens = rng.integers(1, tiny.VOCABULARY, (_EXAMPLES, tiny.SEQUENCE + 1)).astype(np.int32)
    if kind == "language":
        held = {"tokens": tokens[:, :-1], "label": tokens[:, 1:]}
    elif kind == "text":
        held = {"tokens": tokens[:, :-1], "label": label}
    elif kind == "image":
        held = {"image": rng.normal(size=(_EXAMPLES, tiny.IMAGE, tiny.IMAGE, 3)).astype(np.float32), "label": label}
    else:
        given = wanted if isinstance(wanted, Mapping) else {"array": wanted}
        sizes = tiny.OPEN.get(name, {})
        held = {key: filled(key, spec, rng, sizes) for key, spec in given.items()} | {"label": label}
    np.savez(folder / f"{name}.npz", **held)
    return kind
