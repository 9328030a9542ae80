"""Overrides as typed: keys that a command ignores, short names such as `step=`, and mappings with any keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.config import search_path
from runner.config.values import check_name
from runner.errors import invalid

# Short for a key of one command -> the key, and what to type for another command.
_SHORT_KEYS = {
    "prompt": ("generate.prompt", "set task.sample.prompt"),
    "devices": ("advise.devices", "set mesh=batch8, or another mesh"),
    "step": ("replay.step", "set trainer.steps=100, or name a checkpoint: run=latest@100"),
    "against": ("replay.against", "set run=latest, or resume=latest to continue a run"),
    "script": ("replay.script", "start your script with python"),
}
# Group -> the only command that reads it.
_OF_COMMAND = {
    "advise": "runner.advise",
    "evaluate": "runner.evaluate",
    "export": "runner.export",
    "generate": "runner.generate",
    "replay": "runner.verify",
}
_OF_SWEEPS = ("sweep.", "hydra.sweep.", "hydra.sweeper.", "hydra.launcher.")
_SIZE = "model.size="
# Option of `model` -> the group of Hydra's that has the published sizes of its models.
_SIZES = {"gpt": "model/size", "keras_hub": "model/hub"}
# Mappings whose keys the user chooses. In Hydra's config a key that is not there yet would be a mistake.
_FREE_MAPPINGS = ("mesh.axes", "layout.inputs", "tracking.tags")


def check_read(arguments: Sequence[str], module: str, *, verifies: bool) -> None:
    """Checks that no key is typed that this command, as `runner.generate`, ignores.

    A preset and a recorded run may have any. `verifies` is `trainer.verify_first`.

    Raises:
      ConfigError: there is such a key.
    """
    for text in arguments:
        name, _, value = text.lstrip("+~").partition("=")
        group, dot, _ = name.partition(".")
        owner = _OF_COMMAND.get(group, module)
        if module and dot and not module.startswith(owner):
            fix = f"remove {name}, or run python -m {owner}"
            raise invalid(name, value, problem=f"only python -m {owner} reads it", fix=fix)
        if dot and group == "verify" and module == "runner" and not verifies:
            problem = "a run reads it with trainer.verify_first=true only"
            fix = f"set trainer.verify_first=true, remove {name}, or run python -m runner.verify"
            raise invalid(name, value, problem=problem, fix=fix)
        if f"{name}.".replace("/", ".").startswith(_OF_SWEEPS):
            raise invalid(name, value, problem="only a sweep (-m, runner.sweep) reads it", fix=f"remove {name}")


def typed_argument(text: str, module: str) -> str:
    """Returns an override of a command's line with the full name of its key.

    Raises:
      ConfigError: the key is short for one that only another command reads, so it would be ignored.
    """
    key, _, value = text.partition("=")
    name = key.lstrip("+~")
    if name not in _SHORT_KEYS:
        return text
    full, elsewhere = _SHORT_KEYS[name]
    owner = _OF_COMMAND[full.partition(".")[0]]
    if owner != module:
        raise invalid(name, value, problem=f"only python -m {owner} has this key", fix=elsewhere)
    return text.replace(name, full, 1)


def arranged(overrides: Sequence[str]) -> Iterator[str]:
    """Lets a command line name the axes of a mesh and the tags of a run freely, and the size of a model as a key.

    Yields:
      `mesh.axes={...}` as overrides that replace the axes, `mesh.axes.model=2` as one that sets or adds an axis;
      `model.size=llama3_8b` as the option of the group that the typed model has: other keys may then differ from it.

    Raises:
      ConfigError: there is no such size.
    """
    group = None
    # Of several models the last counts.
    for text in overrides:
        if text.startswith("model="):
            group = _SIZES.get(text.removeprefix("model="))
    for text in overrides:
        if text.startswith(_SIZE):
            text = _sized(text, group)
        mapping = next((key for key in _FREE_MAPPINGS if text.startswith((f"{key}={{", f"{key}."))), None)
        if mapping is None:
            yield text
        elif text.startswith(f"{mapping}."):
            yield f"++{text}"
        else:
            yield f"~{mapping}"
            yield f"+{text}"


def _sized(text: str, group: str | None) -> str:
    """Returns the override of a group for the one of `model.size`; without a group, a user's builder may have it."""
    sizes = text.removeprefix(_SIZE)
    known = search_path.options(group or _SIZES["gpt"])
    names = sizes.split(",")
    if group is None:
        if not set(names) <= set(known):
            return text
        raise invalid("model.size", sizes, problem="needs model=gpt or model=keras_hub", fix="set model=gpt too")
    for name in names:
        check_name("model.size", name, known)
    return f"{group}={sizes}"
