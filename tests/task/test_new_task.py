"""A new task is its own file with its options, one registry entry and one YAML file; nothing else changes."""

import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from runner import arrays
from runner.cli.notebook import compose
from runner.config import schema_task
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.errors import ConfigError
from runner.task import registry
from tests.docs import reference

ROOT = Path(__file__).parents[2]
NAME = "power"

# The task's own file: its options, its checks and its class.
MODULE = '''
from dataclasses import dataclass

from runner.config.fields import number
from runner.task import losses
from runner.task.base import OutputSpec, Report
from runner.task.supervised import Supervised, check_output, columns, counted


@dataclass(frozen=True)
class PowerOptions:
    """Numbers, by a power of the error.

    Attributes:
      exponent: power that the absolute error is raised to.
    """

    exponent: float = number(2.0, above=0.0)


class Power(Supervised):
    own_metrics = {"mae": "minimize"}
    step_metrics = ("mae",)

    def __init__(self, config, options, data):
        super().__init__(config, options, data)
        self._exponent = options.exponent
        self.outputs = OutputSpec(1)

    def _error(self, ops, outputs, batch):
        return ops.abs(outputs - columns(ops, batch, self.target_names))

    def loss(self, ops, outputs, batch):
        return losses.mean_by_example(ops, ops.power(self._error(ops, outputs, batch), self._exponent))

    def metrics(self, ops, outputs, batch):
        return {"mae": losses.mean_by_example(ops, self._error(ops, outputs, batch))}

    def totals(self, ops, outputs, batch):
        error = self._error(ops, outputs, batch)
        count = counted(ops, batch, ops.ones_like(error), (0, 1))
        return {"error": counted(ops, batch, error, (0, 1)), "count": count}

    def summary(self, totals):
        return {"mae": float(totals["error"] / totals["count"])}

    def check(self, shape):
        check_output(shape, (1,), "one number per example")

    def report(self, evaluation, source, split="test"):
        return Report({}, {})
'''

# Its YAML file.
YAML = """
name: power
target: null
inputs: null
example_weight: null
exponent: 2.0
"""

# What may name tasks: the registry, and the options that it gets from the config.
MAY_NAME_TASKS = {
    "config/schema_task.py",
    "task/registry.py",
    # It names the target of `task=custom`, until a field can have another name in YAML.
    "config/options.py",
    # A source of data is called custom, too.
    "data/registry.py",
    # A doubt about the form of the data is raised for tasks of one target per example.
    "data/loading.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a project with the task's files; the entry is in the registry of this process, too."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    config_dir = tmp_path / "conf" / "task"
    config_dir.mkdir(parents=True)
    (config_dir / f"{NAME}.yaml").write_text(YAML)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 3)).astype(np.float32)
    np.savez(tmp_path / "points.npz", x=x, y=x.sum(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    options = importlib.import_module(NAME).PowerOptions
    entry = registry.TaskEntry(f"{NAME}.Power", has_measurements=True)
    monkeypatch.setitem(registry.TASKS, NAME, entry)
    monkeypatch.setitem(schema_task.OPTIONS, NAME, options)
    return tmp_path


def test_the_options_of_a_new_task_are_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    typed = ("dataset=arrays", "dataset.path=points.npz", "tracking=none", "model=mlp", f"task={NAME}")
    assert compose(*typed).task.options == {"exponent": 2.0}
    for override, message in (
        ("task.exponent=-1", "task.exponent=-1.0: "),
        ("task.exponent=two", "task.exponent=two: "),
        ("+task.exponnt=2", "did you mean exponent?"),
        ("sweep.metric=eval/r2", "sweep.metric=eval/r2: "),
    ):
        with pytest.raises(ConfigError) as caught:
            compose(*typed, override)
        assert message in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_a_new_task_has_a_row_in_the_reference() -> None:
    assert "power that the absolute error is raised to" in "\n".join(reference._group("task"))


@pytest.mark.usefixtures("folder")
def test_the_loss_and_the_evaluation_of_a_new_task_are_its_own() -> None:
    specs = {"x": ArraySpec((3,), "float32"), "y": ArraySpec((), "float32")}
    config = TaskConfig(NAME, options={"exponent": 3.0})
    assert registry.metric_directions(config) == {"loss": "minimize", "mae": "minimize"}
    task = registry.make_task(config, specs)
    batch = {"x": np.zeros((3, 3), np.float32), "y": np.array([1, 2, 3], np.float32)}
    batch[WEIGHT] = np.array([1, 1, 0], np.float32)
    outputs = np.zeros((3, 1), np.float32)
    np.testing.assert_allclose(task.loss(arrays.of(np), outputs, batch), [1, 8, 27])
    assert task.summary(task.totals(arrays.of(np), outputs, batch)) == {"mae": 1.5}


def tasks_named_in(path: Path) -> list[str]:
    named: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        operands: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            # Sources of data have these words as names, too.
            if "task" in ast.unparse(node):
                operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            operands = [*node.elts]
        elif isinstance(node, ast.Dict):
            operands = [*node.keys]
        for operand in operands:
            # `step`, `positions` and `compiled` are words of many modules.
            words = registry.TASKS.keys() - {"step", "positions", "compiled"}
            if isinstance(operand, ast.Constant) and operand.value in words:
                named.append(str(operand.value))
    return named


def test_no_other_module_names_a_task() -> None:
    package = ROOT / "runner"
    named = {
        path.relative_to(package).as_posix(): tasks_named_in(path)
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).as_posix() not in MAY_NAME_TASKS
    }
    assert {path: tasks for path, tasks in named.items() if tasks} == {}
