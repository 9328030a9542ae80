"""What an example is for the program that runs it."""

import importlib
import pkgutil
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

import tests.keras_examples

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Spec:
    """One example.

    Attributes:
        title: The example's title on keras.io.
        overrides: Overrides of the run config besides the model and the dataset.
        lost: What of the example is not done: its optimizer, schedule, loss, metrics or callbacks; one line each.
        workaround_lines: Lines of code that a user writes besides the model and the data.
        needs: What this project lacks for it (it is then not run); empty: nothing.
    """

    title: str
    overrides: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    workaround_lines: int = 0
    needs: str = ""


@dataclass(frozen=True)
class Example:
    """An example with its place: `category` and `name` are its folder and its file."""

    category: str
    name: str
    spec: Spec

    def overrides(self) -> list[str]:
        """The overrides of a run, without engine, mesh and layout."""
        module = f"{tests.keras_examples.__name__}.{self.category}.{self.name}"
        source = [f"dataset=custom dataset._target_={module}.load", f"model=custom model._target_={module}.make_model"]
        return [*" ".join(source).split(), "dataset.batch_size=16", "trainer.epochs=1", *self.spec.overrides]


def examples() -> list[Example]:
    """All examples, by category and name."""
    found = []
    for category in _modules(tests.keras_examples):
        if category.ispkg:
            package = importlib.import_module(f"{tests.keras_examples.__name__}.{category.name}")
            for module in _modules(package):
                spec = importlib.import_module(f"{package.__name__}.{module.name}").SPEC
                found.append(Example(category.name, module.name, spec))
    return found


def _modules(package: ModuleType) -> list[pkgutil.ModuleInfo]:
    return sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name)


def by_split(arrays: Arrays, test: int = 32) -> dict[str, Arrays]:
    """Splits arrays into train and test: the last `test` examples are the test split."""
    return {
        "train": {name: values[:-test] for name, values in arrays.items()},
        "test": {name: values[-test:] for name, values in arrays.items()},
    }
