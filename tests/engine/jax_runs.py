"""Programs that tests of the engine `jax` run in a process of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks

ROOT = Path(__file__).parents[2]
FAST_CODE = {"XLA_FLAGS": ""}  # over what tests/conftest.py sets


def answer(program: str, *questions: Any) -> Any:
    """Runs the text of a program in a process that has JAX; what it prints and is asked is JSON."""
    command = [sys.executable, "-c", program, *map(json.dumps, questions)]
    return json.loads(forks.run(command, library="jax", cwd=ROOT, check=True).stdout)


def answers(program: str, *questions: Any) -> Any:
    """Returns a module's fixture: what `answer` gives, asked once."""

    @pytest.fixture(scope="module")
    def found() -> Any:
        return answer(program, *questions)

    return found
