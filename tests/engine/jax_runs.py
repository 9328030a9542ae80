"""Programs that tests of the engine `jax` run in a process of their own."""

import json
from typing import Any

import pytest

from tests import forks

FAST_CODE = {"XLA_FLAGS": ""}  # over what tests/conftest.py sets


def answer(program: str, *questions: Any) -> Any:
    """Runs the text of a program in a process that has JAX; what it prints and is asked is JSON."""
    return forks.answer("-c", program, *map(json.dumps, questions), library="jax")


def answers(program: str, *questions: Any) -> Any:
    """Returns a module's fixture: what `answer` gives, asked once."""

    @pytest.fixture(scope="module")
    def found() -> Any:
        return answer(program, *questions)

    return found
