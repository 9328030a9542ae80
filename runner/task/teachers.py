"""Teachers: frozen models that a step or a loss reads, in files that `runner.export`, Keras or KerasHub wrote.

A recorded run without an export is exported before the run that reads it starts, see `runner.cli.teachers`.

They are not part of a run's state. A checkpoint has the SHA-256 of each file, and a run continues with the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.schema_task import TaskConfig
from runner.errors import invalid
from runner.host.paths import outputs_dir

# Name of the Keras file in the folder of an export, see `runner.export.write`.
_FILE = "model.keras"
# In the folder of a KerasHub preset: the config that tells it from other folders, and all files that a teacher has.
_PRESET_CONFIG = "config.json"
_PRESET_FILES = (_PRESET_CONFIG, "task.json", "*.weights.json", "*.weights.h5")
# Prefix of a teacher's digest among the constants of a task.
_CONSTANT = "teacher "


def file_of(name: str, reference: str) -> Path:
    """Returns the file of a teacher, or the folder of a KerasHub preset.

    Args:
      name: the name of the teacher.
      reference: a .keras file, the folder of an export or a preset, or the ID of a run that was exported.

    Raises:
      ConfigError: there is no such file.
    """
    key = f"task.teachers.{name}"
    path = Path(reference).expanduser()
    exported = outputs_dir() / "exports" / reference
    for candidate in (path, path / _FILE, exported / _FILE):
        if candidate.is_file():
            return candidate
    if is_preset(path):
        return path
    if exported.is_dir() or path.is_dir():
        raise invalid(
            key,
            reference,
            problem=f"the export has no {_FILE}, because its model has layers that only the builder's code knows",
            fix="make the model of Keras's own layers",
        )
    raise invalid(
        key,
        reference,
        problem="must be a .keras file, the folder of an export or of a KerasHub preset, or the ID of a run that left "
        "checkpoints",
        fix=f"run python -m runner.export run={reference} if its checkpoints are in another folder",
    )


def is_preset(path: Path) -> bool:
    """Returns whether a path is the folder of a KerasHub preset; `runner.model.hub.check` checks its content."""
    return (path / _PRESET_CONFIG).is_file()


def is_local(reference: str) -> bool:
    """Returns whether a teacher is a file or folder here, or a run that left checkpoints or an export."""
    export = outputs_dir() / "exports" / reference
    checkpoints = outputs_dir() / "checkpoints" / reference
    return Path(reference).expanduser().exists() or export.exists() or checkpoints.exists()


def is_unexported(reference: str) -> bool:
    """Returns whether a teacher is a recorded run with checkpoints that has no export yet."""
    is_plain_name = Path(reference).name == reference
    if not is_plain_name or Path(reference).exists() or (outputs_dir() / "exports" / reference).exists():
        return False
    return (outputs_dir() / "checkpoints" / reference).is_dir()


def check(config: TaskConfig) -> None:
    """Checks that the file of each teacher exists or can be made, and that its name can be one.

    Raises:
      ConfigError: names the teacher.
    """
    for name, reference in config.teachers.items():
        if not name.isidentifier():
            raise invalid(
                f"task.teachers.{name}", reference, problem="must have a Python identifier as name", fix="rename it"
            )
        if not is_unexported(reference):
            file_of(name, reference)


def digests(config: TaskConfig) -> dict[str, Sequence[float]]:
    """Returns the SHA-256 of each teacher's files, as constants of the task: one number per byte."""
    constants: dict[str, Sequence[float]] = {}
    for name, reference in config.teachers.items():
        constants[f"{_CONSTANT}{name}"] = list(map(float, _digest(file_of(name, reference))))
    return constants


def _digest(path: Path) -> bytes:
    """Returns the SHA-256 of a file, or of the names and digests of a preset's files."""
    if path.is_dir():
        of_files = hashlib.sha256()
        # Not of its tokenizer, which is not read.
        for pattern in _PRESET_FILES:
            for file_path in sorted(path.glob(pattern)):
                of_files.update(file_path.name.encode() + _digest(file_path))
        return of_files.digest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def check_same(
    config: TaskConfig, constants: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
) -> None:
    """Checks that a run continues with the teachers that it began with.

    Args:
      config: the task's.
      constants: the constants of the checkpoint.
      now: of the files as they are.

    Raises:
      ConfigError: names a teacher whose file has changed.
    """
    for name, reference in config.teachers.items():
        key = f"{_CONSTANT}{name}"
        if key in constants and list(constants[key]) != list(now[key]):
            raise invalid(
                f"task.teachers.{name}",
                reference,
                problem="the file is not the one that the run began with (its SHA-256 differs)",
                fix="restore that file, or start a new run",
            )
