"""An optimizer is one place: a module, a line in the registry and a YAML file. All else follows from them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Heavy-ball momentum that is not multiplied by the learning rate, as PyTorch's SGD has it.
MODULE = """
from runner.engine.optim.base import (
    OptimizerEntry,
    Rule,
)


def _make_rule(config, xp):
    def update(gradient, weight, slots, rate, step):
        trace = slots["trace"] * config.momentum + gradient
        return weight - trace * rate, {"trace": trace}

    return Rule(("trace",), update)


HEAVY_BALL = OptimizerEntry(("momentum",), _make_rule, keras_class="SGD")
"""
YAML = """
name: heavy_ball
learning_rate: 0.1
momentum: 0.5
"""

CONFIG_PROGRAM = """
import json, sys
import numpy as np
from runner.errors import ConfigError
from runner.cli.notebook import compose
from runner.engine.optim import (
    registry,
    rules,
)

def error(*overrides):
    try:
        compose(*overrides, config_dir=sys.argv[1])
    except ConfigError as error:
        return str(error)

config = compose("optimizer=heavy_ball", config_dir=sys.argv[1]).optimizer
rule = rules.make_rule(config, np)
weight, slots = np.float32([1.0, 2.0]), {"trace": np.float32([0.0, 0.0])}
for step in (1, 2):
    weight, slots = rule.update(np.float32([1.0, -1.0]), weight, slots, config.learning_rate, step)
print(json.dumps({
    "file": registry.__file__,
    "name": config.name,
    "weight": weight.tolist(),
    "trace": slots["trace"].tolist(),
    "without a key": error("optimizer=heavy_ball", "optimizer.momentum=null"),
    "with another's key": error("optimizer=heavy_ball", "+optimizer.rho=0.9"),
    "unknown": error("optimizer.name=heavy_bal"),
}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, to which the optimizer is added as a contributor adds one."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "runner", folder / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "conf").symlink_to(ROOT / "conf")
    optim = folder / "runner/engine/optim"
    (optim / "heavy_ball.py").write_text(MODULE)
    registry = optim / "registry.py"
    table = registry.read_text()
    for line, added in (
        ("from runner.engine.optim.sgd import SGD", "from runner.engine.optim.heavy_ball import HEAVY_BALL"),
        ('    "sgd": SGD,', '    "heavy_ball": HEAVY_BALL,'),
    ):
        assert line in table
        table = table.replace(line, f"{line}\n{added}")
    registry.write_text(table)
    (folder / "own/optimizer").mkdir(parents=True)
    (folder / "own/optimizer/heavy_ball.yaml").write_text(YAML)
    return folder


def answer(package: Path, program: str, *arguments: str) -> Any:
    """Runs a program that imports the copy of the package, and returns the JSON that it prints."""
    # Started for real: the process that `tests.forks` forks has imported the package that is tested elsewhere.
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=package,
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def composed(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = answer(package, CONFIG_PROGRAM, str(package / "own"))
    assert Path(found["file"]).is_relative_to(package)
    return found


def test_its_yaml_file_is_an_option_of_the_group(composed: dict[str, Any]) -> None:
    assert composed["name"] == "heavy_ball"


def test_its_rule_computes_in_numpy(composed: dict[str, Any]) -> None:
    # Two steps with gradients of 1 and -1: traces of 1, then 1.5.
    assert composed["trace"] == [1.5, -1.5]
    assert composed["weight"] == pytest.approx([1.0 - 0.1 - 0.15, 2.0 + 0.1 + 0.15])


@pytest.mark.parametrize(
    ("case", "key", "words"),
    [
        ("without a key", "optimizer.momentum", "heavy_ball"),
        ("with another's key", "optimizer.rho=0.9", "heavy_ball"),
        ("unknown", "optimizer.name=heavy_bal", "heavy_ball"),
    ],
)
def test_checks_of_its_keys_and_name_follow_from_its_entry(
    composed: dict[str, Any], case: str, key: str, words: str
) -> None:
    message = composed[case]
    assert message.startswith(key)
    assert words in message
