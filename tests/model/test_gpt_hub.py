"""With the weights of KerasHub's GPT-2, Llama 3 and Mixtral, `model=gpt` gives their logits."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_transformer_equals_those_of_keras_hub() -> None:
    # An import would keep every later test of the session from being forked, see `tests.forks`.
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("needs the extra hub")
    command = [sys.executable, "-m", "tests.model.gpt_hub_worker"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=1800)
    for apart, size in json.loads(done.stdout.splitlines()[-1]).values():
        assert apart <= 1e-5 * size
