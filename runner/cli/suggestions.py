"""What to type for names of other tools, files, import paths and sizes: the nearest spelling is no help for these."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from runner.config import search_path
from runner.engine.optim.keras_classes import CLASSES
from runner.errors import nearest

# Options of a group are few and short, and a name that is less alike is another thing.
_LEAST_ALIKE = 0.7


@cache
def _tables() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return tables


def for_key(name: str, value: str) -> str:
    """Returns the overrides that set what another tool calls by this name; empty: it is no such name.

    >>> for_key("lr", "0.1")
    'optimizer.learning_rate=0.1'
    """
    for names, row in _tables()["keys"].items():
        if name in names.split():
            if row.endswith("precision=<value>"):
                value = _tables()["precisions"].get(value, value)
            return row.replace("<value>", value)
    return ""


def for_option(group: str, option: str) -> tuple[str, str]:
    """Returns the overrides to type for an option that its group lacks, and the fix with them; both may be empty.

    >>> for_option("mesh", "4gpus")
    ('mesh=batch4', 'did you mean mesh=batch4?')
    """
    names = search_path.options(group)
    found = _foreign(group, option)
    if not found:
        longer = [name for name in names if name.startswith(f"{option}_")]
        near = longer or filter(None, [nearest(option, names, _LEAST_ALIKE)])
        found = " or ".join(f"{group}={name}" for name in near)
    if "hardware.name=" in found:
        return found, f"describe it by its own numbers in place of the l4's: {found}"
    if not found and group == "dataset" and re.fullmatch(r"[a-z]\w*(/\w+)*", option):
        # TFDS has more than a thousand, and only that library knows their names.
        found = f"dataset=tfds dataset.name={option}"
        return found, f"if TFDS has it, set {found}"
    return found, f"did you mean {found}?" if found else ""


def _foreign(group: str, option: str) -> str:
    name = option.lower()
    names = search_path.options(group)
    if name in names:
        return f"{group}={name}"
    found = ""
    for pattern, row in _tables()["options"].items():
        match = re.fullmatch(pattern, f"{group}={option}", re.IGNORECASE)
        if match is not None:
            found = match.expand(row)
            break
    if group == "optimizer" and not found:
        name = name.rpartition(".")[2]
        classes = {own.lower(): f"optimizer=keras optimizer.class_name={own} engine=jax" for own in CLASSES}
        found = f"optimizer={name}" if name in names else classes.get(name, "")
    again, _, value = found.partition("=")
    is_absent = again == group and value != option and " " not in value and value not in names
    return _foreign(group, value) if is_absent else found
