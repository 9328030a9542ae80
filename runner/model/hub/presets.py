"""Folders that KerasHub's `save_to_preset` wrote: their config is data alone, their weights are read where they lie.

A preset's config may name any module of Python to be imported; one that names another than Keras's is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import ConfigError, describe, did_you_mean, invalid
from runner.host import libraries
from runner.host.late import late
from runner.model.hub import catalog
from runner.model.stored import StoredValue

if TYPE_CHECKING:
    from runner.model.hub import private
else:
    private = late("runner.model.hub.private")

KEY = "model.preset"
CONFIG = "config.json"
TASK = "task.json"
TOKENIZER = (
    "tokenizer.json"  # KerasHub's description of the tokenizer, not the file of this name of the library tokenizers
)
WEIGHTS = "model.weights.h5"
SHARDED = "model.weights.json"
TASK_WEIGHTS = "task.weights.h5"
SCHEMES = ("kaggle://", "hf://", "modelscope://")
_MADE = "set it to a folder that backbone.save_to_preset(folder) wrote"
_CODE = ("Lambda", "__lambda__", "__typespec__")  # of serialized objects, those that may run what they hold
_OURS = ("keras", "keras_hub", "builtins")


@dataclass(frozen=True)
class Preset:
    """A folder with a backbone's config and weights.

    Attributes:
      folder: where it lies.
      config: what its config.json holds, as KerasHub serialized the backbone.
      task: likewise of its task.json; None where there is none.
    """

    folder: Path
    config: Mapping[str, Any]
    task: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """Name of the backbone's class."""
        return str(self.config["class_name"])

    @property
    def tokenizer(self) -> str | None:
        """Name of the class of the tokenizer that was saved beside the backbone; None where none was."""
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads((self.folder / TOKENIZER).read_text())
            if isinstance(content, dict) and isinstance(content.get("class_name"), str):
                return str(content["class_name"])
        return None

    def backbone(self, keras: Any, keys: Mapping[str, Any]) -> Any:
        """Returns the backbone, its weights drawn.

        Args:
          keras: the module; KerasHub is loaded.
          keys: of the class, in place of the preset's own.
        """
        content = _without(dict(self.config), "dtype")  # the run's precision decides
        return keras.saving.deserialize_keras_object(content | {"config": {**content["config"], **keys}})

    def values(self, body: Any, task: Any) -> Mapping[int, StoredValue]:
        """Returns id of a variable -> where the preset holds its value; none is read.

        Args:
          body: the backbone.
          task: model of KerasHub's around it, or None.

        Raises:
          ConfigError: the weights can't be read, or are not those of this backbone.
        """
        with private.loads_noted() as found:
            try:
                body.load_weights(str(next(path for path in _weights(self.folder) if path.is_file())))
                if task is not None and self._has_head_of(task):
                    task.load_task_weights(str(self.folder / TASK_WEIGHTS))
            except (OSError, ValueError) as error:  # h5py's, and Keras's
                raise invalid(
                    KEY, self.folder, problem=f"its weights can't be read ({describe(error)})", fix=_MADE
                ) from error
        return found

    def _has_head_of(self, task: Any) -> bool:
        if self.task is None or not (self.folder / TASK_WEIGHTS).is_file():
            return False
        same = self.task.get("class_name") == type(task).__name__
        return bool(same and self.task["config"].get("num_classes") == getattr(task, "num_classes", None))


def check(value: str) -> None:
    """Checks a preset before anything is imported: a folder's content, or that a name may be one.

    Raises:
      ConfigError: no folder, no preset, or one that would import what is not Keras's.
    """
    if is_folder(value):
        _read(value, Path(value).expanduser())
    elif value.startswith(SCHEMES):
        return
    elif "/" in value or Path(value).exists():
        raise invalid(KEY, value, problem="there is no such folder", fix=_MADE)
    elif catalog.presets() and value not in catalog.presets():
        raise _unknown(value, catalog.presets())


def is_folder(value: str) -> bool:
    """Tells whether a preset is a folder of this machine, which needs no network."""
    return Path(value).expanduser().is_dir()


def opened(value: str) -> Preset:
    """Returns a preset; one of a name is fetched first, into KerasHub's own cache.

    Raises:
      ConfigError: it is none, or it can't be fetched.
    """
    return _read(value, Path(value).expanduser() if is_folder(value) else _fetched(value))


def _fetched(value: str) -> Path:
    known: Any = late("keras_hub.models")
    names = known.Backbone.presets
    if value not in names and not value.startswith(SCHEMES):
        raise _unknown(value, names)
    utils: Any = late("keras_hub.src.utils.preset_utils")
    try:
        with libraries.hidden(("tensorflow",)):  # which would tell it of file systems that no preset here lies in
            found = Path(utils.get_file(value, CONFIG))
            for name in (TASK, WEIGHTS, TASK_WEIGHTS):
                with suppress(Exception):  # not every preset has each
                    utils.get_file(value, name)
            if not (found.parent / WEIGHTS).is_file():
                for name in _files_of(json.loads(Path(utils.get_file(value, SHARDED)).read_text())):
                    utils.get_file(value, name)
    except Exception as error:  # whatever a hub's client raises
        raise invalid(
            KEY,
            value,
            problem=f"it could not be fetched ({describe(error)})",
            fix=f"without a network {_MADE} where there is one",
        ) from error
    return found.parent


def _unknown(value: str, names: Iterable[str]) -> ConfigError:
    allowed = "there is no such folder, and KerasHub has no preset of this name"
    return invalid(KEY, value, problem=allowed, fix=did_you_mean(value, names, _MADE))


def _weights(folder: Path) -> list[Path]:
    return [folder / name for name in (WEIGHTS, SHARDED)]


def _files_of(index: Mapping[str, Any]) -> Iterator[str]:
    held = index["weight_map"].values()
    yield from sorted({name for each in held for name in ([each] if isinstance(each, str) else each)})


def _read(value: str, folder: Path) -> Preset:
    try:
        found, task, index = (
            json.loads((folder / name).read_text()) if (folder / name).is_file() else None
            for name in (CONFIG, TASK, SHARDED)
        )
        foreign = next(_foreign([found, task]), None)
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(KEY, value, problem=f"it can't be read ({describe(error)})", fix=_MADE) from error
    config = _of_object(value, CONFIG, found)
    if foreign is not None:
        raise invalid(
            KEY, value, problem=f"its config names {foreign}, and only what is Keras's own is imported", fix=_MADE
        )
    name = str(config.get("class_name"))
    if name not in catalog.public() or not catalog.is_a(name, "Backbone"):
        raise invalid(KEY, value, problem=f"its {CONFIG} is of {name}, no backbone of KerasHub's", fix=_MADE)
    if not any(path.is_file() for path in _weights(folder)):
        raise invalid(KEY, value, problem=f"the folder holds neither {WEIGHTS} nor {SHARDED}", fix=_MADE)
    if not (folder / WEIGHTS).is_file():
        _check_files(value, folder, index)
    return Preset(folder, config, None if task is None else _of_object(value, TASK, task))


def _of_object(value: str, name: str, content: Any) -> Mapping[str, Any]:
    """Returns a file's content where it describes an object of a class."""
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        return content
    raise invalid(KEY, value, problem=f"the folder holds no {name} of KerasHub's", fix=_MADE)


def _check_files(value: str, folder: Path, index: Any) -> None:
    """Checks that the files are there that the weights lie in, as an index names them."""
    try:
        missing = [name for name in _files_of(index) if not (folder / name).is_file()]
    except (AttributeError, KeyError, TypeError) as error:
        raise invalid(KEY, value, problem=f"its {SHARDED} is no index of weights of Keras's", fix=_MADE) from error
    if missing:
        allowed = f"the folder has no {missing[0]}, which its {SHARDED} names"
        raise invalid(KEY, value, problem=allowed, fix="copy the whole folder")


def _foreign(content: Any) -> Iterator[str]:
    """Yields what of a serialized config is not Keras's: modules, and functions that stand there as code."""
    if isinstance(content, Mapping):
        module = content.get("module")
        if isinstance(module, str) and module.split(".")[0] not in _OURS:
            yield f"module {module}"
        if str(content.get("class_name")) in _CODE:
            yield f"a {content['class_name']}"
        for each in content.values():
            yield from _foreign(each)
    elif isinstance(content, list):
        for each in content:
            yield from _foreign(each)


def _without(content: Any, key: str) -> Any:
    if isinstance(content, Mapping):
        return {name: _without(each, key) for name, each in content.items() if name != key}
    return [_without(each, key) for each in content] if isinstance(content, list) else content
