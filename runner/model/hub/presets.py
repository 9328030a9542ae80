"""KerasHub presets: folders of `save_to_preset`. Their configs must be plain data; their weights are read by shards.

A preset's config may name any Python module to be imported. One that names modules other than Keras's is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import describe, did_you_mean, invalid
from runner.host.late import late
from runner.model import loading
from runner.model.stored import StoredValue

if TYPE_CHECKING:
    from runner.model.hub import private
else:
    private = late("runner.model.hub.private")

KEY = "model.preset"

# File names of KerasHub. Its tokenizer.json describes a Keras object, unlike that of the library `tokenizers`.
CONFIG = "config.json"
TASK = "task.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.weights.h5"
# Index of weights that are sharded over several files; a preset has one of the two.
SHARDED = "model.weights.json"
TASK_WEIGHTS = "task.weights.h5"

# Presets that are downloaded from elsewhere than KerasHub's own list.
SCHEMES = ("kaggle://", "hf://", "modelscope://")

_FIX = "set it to a folder that backbone.save_to_preset(folder) wrote"

# Classes of serialized objects that may execute code when they are loaded.
_CODE_CLASSES = ("Lambda", "__lambda__", "__typespec__")
_TRUSTED_PACKAGES = ("keras", "keras_hub", "builtins")


@dataclass(frozen=True)
class Preset:
    """A folder with a backbone's config and weights; the contents of its config.json, and of its task.json if any."""

    folder: Path
    config: Mapping[str, Any]
    task: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """Name of the backbone's class."""
        return str(self.config["class_name"])

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the backbone."""
        options: Mapping[str, Any] = self.config["config"]
        return options

    @property
    def tokenizer(self) -> str | None:
        """Name of the class of the preset's tokenizer; None if there is none."""
        # An unreadable file counts as no tokenizer: the run does not use it.
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads((self.folder / TOKENIZER).read_text())
            if isinstance(content, dict) and isinstance(content.get("class_name"), str):
                return str(content["class_name"])
        return None

    def backbone(self, keras: Any, options: Mapping[str, Any]) -> Any:
        """Returns the backbone with random weights."""
        # The run's precision decides, not the dtype that was saved.
        content = _without(dict(self.config), "dtype")
        overridden = {**content["config"], **options}
        return keras.saving.deserialize_keras_object(content | {"config": overridden})

    def values(self, backbone: Any, task_model: Any) -> Mapping[int, StoredValue]:
        """Returns id of a variable -> its value in the preset's files; none is read yet.

        Raises:
          ConfigError: the weights can't be read, or are not those of this backbone.
        """
        weights = self.folder / WEIGHTS
        if not weights.is_file():
            weights = self.folder / SHARDED
        with private.recorded_loads() as values:
            try:
                backbone.load_weights(str(weights))
                if task_model is not None and self._has_head_of(task_model):
                    task_model.load_task_weights(str(self.folder / TASK_WEIGHTS))
            except (OSError, ValueError) as error:
                # The first is h5py's, the second Keras's.
                raise invalid(
                    KEY, self.folder, problem=f"its weights can't be read ({describe(error)})", fix=_FIX
                ) from error
        return values

    def _has_head_of(self, task_model: Any) -> bool:
        if self.task is None or not (self.folder / TASK_WEIGHTS).is_file():
            return False
        if self.task.get("class_name") != type(task_model).__name__:
            return False
        return bool(self.task["config"].get("num_classes") == getattr(task_model, "num_classes", None))


def check(value: str) -> None:
    """Checks the content of a preset's folder before anything is imported; only KerasHub knows the names."""
    if is_folder(value):
        _read(value, Path(value).expanduser())
    elif value.startswith(SCHEMES):
        # Only a download shows what it contains.
        return
    elif "/" in value or Path(value).exists():
        raise invalid(KEY, value, problem="there is no such folder", fix=_FIX)


def is_folder(value: str) -> bool:
    """Returns whether a preset is a folder and no name."""
    return Path(value).expanduser().is_dir()


def opened(value: str) -> Preset:
    """Returns a preset; one that is given by name is downloaded first, into KerasHub's cache.

    Raises:
      ConfigError: it is not a preset, or the download failed.
    """
    if is_folder(value):
        folder = Path(value).expanduser()
    else:
        folder = _downloaded(value)
    return _read(value, folder)


def _downloaded(value: str) -> Path:
    models: Any = late("keras_hub.models")
    names = models.Backbone.presets
    if value not in names and not value.startswith(SCHEMES):
        problem = "there is no such folder, and KerasHub has no preset of this name"
        raise invalid(KEY, value, problem=problem, fix=did_you_mean(value, names, _FIX))
    preset_utils: Any = late("keras_hub.src.utils.preset_utils")
    try:
        # KerasHub would import TensorFlow only for file systems that none of these presets is on.
        with loading.hidden(("tensorflow",)):
            config = Path(preset_utils.get_file(value, CONFIG))
            for name in (TASK, WEIGHTS, TASK_WEIGHTS):
                # Not every preset has each of these files.
                with suppress(Exception):
                    preset_utils.get_file(value, name)
            if not (config.parent / WEIGHTS).is_file():
                index = json.loads(Path(preset_utils.get_file(value, SHARDED)).read_text())
                for name in _files_of(index):
                    preset_utils.get_file(value, name)
    except Exception as error:
        # Each download client has its own exceptions.
        problem = f"it could not be downloaded ({describe(error)})"
        fix = "check the network connection, or " + _FIX + " on a machine with one"
        raise invalid(KEY, value, problem=problem, fix=fix) from error
    return config.parent


def _files_of(index: Mapping[str, Any]) -> list[str]:
    names: set[str] = set()
    for files in index["weight_map"].values():
        # A variable is in one file or in several.
        if isinstance(files, str):
            names.add(files)
        else:
            names.update(files)
    return sorted(names)


def _read(value: str, folder: Path) -> Preset:
    try:
        config_content = _json(folder / CONFIG)
        task_content = _json(folder / TASK)
        untrusted = next(_untrusted([config_content, task_content]), None)
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(KEY, value, problem=f"it can't be read ({describe(error)})", fix=_FIX) from error
    config = _serialized_object(value, CONFIG, config_content)
    if untrusted is not None:
        problem = f"its config names {untrusted}, but only Keras's own modules are imported"
        raise invalid(KEY, value, problem=problem, fix=_FIX)
    if not isinstance(config.get("class_name"), str):
        raise invalid(KEY, value, problem=f"its {CONFIG} names no class", fix=_FIX)
    if not (folder / WEIGHTS).is_file() and not (folder / SHARDED).is_file():
        raise invalid(KEY, value, problem=f"the folder has neither {WEIGHTS} nor {SHARDED}", fix=_FIX)
    task = None
    if task_content is not None:
        task = _serialized_object(value, TASK, task_content)
    return Preset(folder, config, task)


def _json(path: Path) -> Any:
    if not path.is_file():
        return None
    return json.loads(path.read_text())


def _serialized_object(value: str, name: str, content: Any) -> Mapping[str, Any]:
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        return content
    raise invalid(KEY, value, problem=f"the folder has no valid {name} of KerasHub", fix=_FIX)


def _untrusted(content: Any) -> Iterator[str]:
    if isinstance(content, list):
        for item in content:
            yield from _untrusted(item)
    if not isinstance(content, Mapping):
        return
    module = content.get("module")
    if isinstance(module, str) and module.split(".")[0] not in _TRUSTED_PACKAGES:
        yield f"module {module}"
    if str(content.get("class_name")) in _CODE_CLASSES:
        yield f"a {content['class_name']}"
    for item in content.values():
        yield from _untrusted(item)


def _without(content: Any, key: str) -> Any:
    if isinstance(content, Mapping):
        return {name: _without(item, key) for name, item in content.items() if name != key}
    if isinstance(content, list):
        return [_without(item, key) for item in content]
    return content
