"""What an example is for the program that runs it; examples.yaml lists them."""

import ast
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

FOLDER = Path(__file__).parent
PACKAGE = __name__.rpartition(".")[0]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Example:
    """An example: `path` is its folder and its file, the other fields are those that examples.yaml explains."""

    path: str
    title: str
    trains: str = ""
    data: str = ""
    overrides: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    simplified: list[str] = field(default_factory=list)
    needs: str = ""

    @property
    def module(self) -> str:
        return f"{PACKAGE}.{self.path.replace('/', '.')}"

    def all_overrides(self) -> list[str]:
        """The overrides of a run, without engine, mesh and layout."""
        own = [override.replace("{module}", self.module) for override in self.overrides]
        source = ["dataset.batch_size=16", "dataset.holdout=0"]
        if not any(override.startswith("dataset=") for override in own):
            module = f"{PACKAGE}.data" if self.data else self.module
            source = ["dataset=custom", f"dataset._target_={module}.load", *source]
            source += [f"+dataset.call='{self.data}'"] if self.data else []
        if "task=step" not in own:
            source += ["model=custom", f"model._target_={self.module}.make_model"]
        return [*source, "trainer.epochs=2", "trainer.progress=none", *own]

    def lines(self) -> int:
        """Lines of code that a user writes besides the model and the data: loss, metrics or step, by the overrides."""
        overrides = " ".join(self.overrides)
        names = re.findall(r"{module}\.(\w+)", overrides)
        for listed in re.findall(r"(?:max|min)imize=\[([\w,]+)\]", overrides):
            names += listed.split(",")
        counted: dict[tuple[str, str], int] = {}
        for name in names:
            _count(self.module, name, counted)
        return sum(counted.values())


def examples() -> list[Example]:
    content = yaml.safe_load((FOLDER / "examples.yaml").read_text())
    return [Example(path, **fields) for path, fields in content.items()]


def by_split(arrays: Arrays, test: int = 32) -> dict[str, Arrays]:
    """Splits arrays into train and test: the last `test` examples are the test split."""
    return {
        "train": {name: values[:-test] for name, values in arrays.items()},
        "test": {name: values[-test:] for name, values in arrays.items()},
    }


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(FOLDER.joinpath(*module.removeprefix(f"{PACKAGE}.").split(".")).with_suffix(".py").read_text())


def _imported(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports of this package: name to module and the name there, empty for a module."""
    names = {}
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(PACKAGE):
            for alias in node.names:
                place = (node.module, alias.name)
                if node.module == PACKAGE:
                    place = (f"{PACKAGE}.{alias.name}", "")
                names[alias.asname or alias.name] = place
    return names


def _count(module: str, name: str, counted: dict[tuple[str, str], int]) -> None:
    """Adds the lines of a function or class, and of what it uses of this package, except the models that it builds."""
    imported = _imported(module)
    if name in imported:
        module, name = imported[name]
    for statement in _tree(module).body:
        is_named = isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name
        if not is_named or (module, name) in counted:
            continue
        parts: list[Any] = [statement]
        if isinstance(statement, ast.ClassDef):
            methods = [part for part in statement.body if isinstance(part, ast.FunctionDef)]
            parts = [part for part in methods if part.name not in ("build", "__init__")]
        counted[module, name] = sum(part.end_lineno - part.lineno + 1 for part in parts)
        for part in parts:
            for node in ast.walk(part):
                if isinstance(node, ast.Name):
                    _count(module, node.id, counted)
