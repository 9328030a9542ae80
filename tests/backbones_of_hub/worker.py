"""What tests of KerasHub need of it, in a process of its own: `python -m tests.backbones_of_hub.worker`.

`names` prints all backbones. `arrays NAME FOLDER` writes what a tiny backbone takes as NAME.npz, and prints the
overrides of a run with it. `write NAME FOLDER` writes its preset, and `compare FOLDER FILE` prints which variables of
an exported file's backbone differ from the preset's; a file holds adapters added to the kernels that they are of.
"""

import json
import sys
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


def made(name: str) -> Any:
    kind = getattr(hub.keras_hub.models, name)
    return kind(**options.instantiated(hub.keras_hub, keras, tiny.config(name)))


def built(name: str) -> Any:
    """Returns a backbone whose variables have shapes and no values."""
    found: list[Any] = []
    private.reset_layer_names()
    try:
        jax.eval_shape(lambda: found.append(made(name)))
    except jax.errors.JAXTypeError:  # it computes with values as it is built
        found.append(made(name))
    return found[-1]


def kind_of(name: str, wanted: Any) -> str:
    """Returns `language`, `text`, `image` or `arrays`: what a run gives to a backbone of these inputs."""
    if isinstance(wanted, list | tuple):
        return kind_of(name, {each.name: each for each in wanted})
    if not isinstance(wanted, Mapping):
        return "image" if len(wanted.shape) == 4 else "arrays"
    sides = ("", "encoder_", "decoder_")
    derived = {f"{side}{key}" for side in sides for key in ("token_ids", "padding_mask", "position_ids")}
    if {*wanted} <= {*derived, "segment_ids"}:
        has_head = hasattr(hub.keras_hub.models, f"{name.removesuffix('Backbone')}CausalLM")
        return "language" if has_head or "decoder_token_ids" in wanted else "text"
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


def arrays(name: str, folder: str) -> None:
    rng, wanted = np.random.default_rng(1), built(name).input
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
    np.savez(Path(folder) / f"{name}.npz", **held)
    keys = [f"++model.config.{key}={written(value)}" for key, value in tiny.config(name).items()]
    chosen = ["engine=jax", "model=keras_hub", f"model.backbone={name}", *keys, "dataset=arrays"]
    chosen += [f"dataset.path={Path(folder) / name}.npz", "dataset.standardize=false", "dataset.batch_size=16"]
    chosen += ["task=language_model", f"task.vocabulary={tiny.VOCABULARY}"] if kind == "language" else []
    if name in tiny.UNUSED:
        chosen.append(f"model.trainable=['(?!({'|'.join(tiny.UNUSED[name])})$).*']")
    print(json.dumps([*chosen, "optimizer.learning_rate=0.001"]))


def written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(each) for each in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def write(name: str, folder: str) -> None:
    keras.utils.set_random_seed(3)
    made(name).save_to_preset(folder)


def compare(folder: str, file: str) -> None:
    before = hub.keras_hub.models.Backbone.from_preset(folder)
    model = keras.models.load_model(file)
    after = {variable.path: np.asarray(variable) for variable in model.weights}
    apart = {v.path: float(np.abs(np.asarray(v) - after[v.path]).max()) for v in before.weights}
    changed = [path for path, difference in apart.items() if difference > 0]
    print(json.dumps({"changed": changed, "largest": max(apart.values())}))


def names() -> None:
    print(json.dumps(tiny.names()))


if __name__ == "__main__":
    hub.load()
    {"names": names, "arrays": arrays, "write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:])
