"""A new engine is a package, an entry of the table and a YAML file: no other part compares an engine's name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engine.registry import ENGINES

ROOT = Path(__file__).parents[2]

# An engine of one weight, whose step adds the mean label to it.
PACKAGE = {
    "environment": "def prepare_environment(config): pass",
    "devices": "def prepare_devices(config): pass",
    "plain": "def make(config, data, values): raise NotImplementedError",
    "engine": """
import numpy as np

from runner.engine import evaluation
from runner.layout import Placement
from runner import arrays
from tests.numpy_engine import NumpyEngine


class ToyEngine(NumpyEngine):
    placements = {"d1/w": Placement("d1/w", (), (), None)}

    def build(self): pass
    def compile(self, batches): pass
    def collectives(self): return []
    def layer_outputs(self): return []
    def used_whole(self): return ()

    def evaluate(self, batches, *, keep_outputs=False):
        return evaluation.evaluate(self.task, batches, self.judged, np.asarray, keep_outputs=keep_outputs)

    def judged(self, batch):
        examples = {name: array[0] for name, array in batch.arrays.items()}
        outputs = np.full((len(examples["label"]), self.task.outputs.units), self.w, np.float32)
        ops = arrays.of(np)
        return evaluation.BatchResult(
            self.task.loss(ops, outputs, examples), self.task.totals(ops, outputs, examples), outputs
        )


def make(config, data, total_steps, planning):
    engine = ToyEngine()
    engine.task = data.task
    return engine
""",
}
ENTRY = """
from runner.engine import registry

registry.ENGINES["toy"] = registry.EngineEntry(
    package="toy_engine",
    title="Toy",
    libraries=("numpy",),
    distributions=("numpy",),
    hidden=(),
    install="pip install numpy",
)
"""
START = """
import sys

import toy_entry
from runner.cli import entry

sys.argv[0] = "runner"
entry.main("runner.cli.train")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Returns a folder with the package of an engine, its entry, its YAML file and a program that adds the entry."""
    package = tmp_path / "toy_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in PACKAGE.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "toy_entry.py").write_text(ENTRY)
    (tmp_path / "start.py").write_text(START)
    options = tmp_path / "conf" / "engine"
    options.mkdir(parents=True)
    (options / "toy.yaml").write_text("# An engine of one weight.\nname: toy\n")
    return tmp_path


def run(project: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs the train command on a small dataset, with the project's engine in the table."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(project), str(ROOT)])}
    command = [sys.executable, "start.py", "dataset=digits", "mesh=single", "tracking=none", *overrides]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_a_run_trains_with_an_engine_that_only_the_table_knows(project: Path) -> None:
    done = run(project, "engine=toy", "trainer.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "eval/accuracy" in done.stdout


def compared_names(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the names of engines that a module compares with something."""
    names = {*ENGINES}
    for node in ast.walk(tree):
        compared: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                compared += operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        for value in compared:
            if isinstance(value, ast.Constant) and value.value in names:
                yield value


def test_no_module_outside_the_engines_compares_the_name_of_one() -> None:
    package = ROOT / "runner"
    lines = [
        f"{path.relative_to(ROOT)}:{constant.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] != "engine"
        for constant in compared_names(ast.parse(path.read_text()))
    ]
    assert lines == []
    examples = ("name == 'jax'", "name in ('core_dtensor', other)", "'jax' not in names")
    assert all(list(compared_names(ast.parse(example))) for example in examples)
