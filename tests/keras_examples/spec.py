"""What an example is for the program that runs it."""

import ast
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
PACKAGE = __name__.rpartition(".")[0]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Spec:
    """One example.

    Attributes:
        title: The example's title on keras.io.
        trains: How it trains there: optimizer and schedule; loss; metrics; callbacks.
        data: A call of a function of `tests.keras_examples.data`; empty: the module's own `load`.
        overrides: Overrides of the run config besides the model and the dataset; `{module}` is the example's module.
        lost: What of `trains` is not done; one line each.
        simplified: All that is left out of its model or data, or replaced, beside sizes; no part of the training.
        needs: What this project lacks for it (it is then not run); empty: nothing.
    """

    title: str
    trains: str = ""
    data: str = ""
    overrides: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    simplified: list[str] = field(default_factory=list)
    needs: str = ""


@dataclass(frozen=True)
class Example:
    """An example with its place: `category` and `name` are its folder and its file."""

    category: str
    name: str
    spec: Spec

    @property
    def path(self) -> str:
        """Its name."""
        return f"{self.category}/{self.name}"

    @property
    def module(self) -> str:
        """The import path of its module."""
        return f"{PACKAGE}.{self.category}.{self.name}"

    def overrides(self) -> list[str]:
        """The overrides of a run, without engine, mesh and layout."""
        own = [override.replace("{module}", self.module) for override in self.spec.overrides]
        source = ["dataset.batch_size=16"]
        if not any(override.startswith("dataset=") for override in own):
            module = f"{PACKAGE}.data" if self.spec.data else self.module
            source = ["dataset=custom", f"dataset._target_={module}.load", *source]
            source += [f"+dataset.call='{self.spec.data}'"] if self.spec.data else []
        if "task=step" not in own:
            source += ["model=custom", f"model._target_={self.module}.make_model"]
        return [*source, "trainer.epochs=2", "trainer.progress=none", *own]

    def lines(self) -> int:
        """Lines of code that a user writes besides the model and the data: loss, metrics or step, by the overrides."""
        overrides = " ".join(self.spec.overrides)
        names = re.findall(r"{module}\.(\w+)", overrides)
        for listed in re.findall(r"(?:max|min)imize=\[([\w,]+)\]", overrides):
            names += listed.split(",")
        counted: dict[tuple[str, str], int] = {}
        for name in names:
            _count(self.module, name, counted)
        return sum(counted.values())


def examples() -> list[Example]:
    """All examples, by category and name. Their modules are read and not imported: some import Keras."""
    found = []
    for path in sorted(FOLDER.glob("*/*.py")):
        if path.stem == "__init__":
            continue
        category = path.parent.name
        specs = [statement for statement in _tree(f"{PACKAGE}.{category}.{path.stem}").body if _is_spec(statement)]
        if len(specs) != 1:
            raise ValueError(f"{path}: must have one SPEC")
        assigned = specs[0]
        assert isinstance(assigned, ast.Assign)
        spec = eval(compile(ast.Expression(assigned.value), str(path), "eval"), {"Spec": Spec})
        found.append(Example(category, path.stem, spec))
    return found


def by_split(arrays: Arrays, test: int = 32) -> dict[str, Arrays]:
    """Splits arrays into train and test: the last `test` examples are the test split."""
    return {
        "train": {name: values[:-test] for name, values in arrays.items()},
        "test": {name: values[-test:] for name, values in arrays.items()},
    }


def _tree(module: str) -> ast.Module:
    path = FOLDER.joinpath(*module.removeprefix(f"{PACKAGE}.").split(".")).with_suffix(".py")
    return _parsed(path.read_text())


@functools.cache
def _parsed(text: str) -> ast.Module:
    """A parsed module, which is not to be changed: the examples share modules."""
    return ast.parse(text)


def _is_spec(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "SPEC"


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
        parts: list[ast.AST] = [statement]
        if isinstance(statement, ast.ClassDef):
            methods = [part for part in statement.body if isinstance(part, ast.FunctionDef)]
            parts = [part for part in methods if part.name not in ("build", "__init__")]
        counted[module, name] = sum(_lines(part) for part in parts)
        for part in parts:
            for node in ast.walk(part):
                if isinstance(node, ast.Name):
                    _count(module, node.id, counted)


def _lines(part: Any) -> int:
    return int(part.end_lineno - part.lineno + 1)
