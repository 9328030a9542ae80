"""Models that rescale their images are told from those that don't, for tf_keras and for Keras 3."""

from __future__ import annotations

import json
import sys

import pytest

from tests import forks


@pytest.mark.parametrize(("package", "library"), [("keras", forks.JAX), ("tf_keras", forks.TENSORFLOW)])
def test_models_that_rescale_bytes_are_recognized(package: str, library: str) -> None:
    command = [sys.executable, "-m", "tests.model.preprocessing_worker", package]
    done = forks.run(command, library=library, cwd=forks.ROOT, check=True, timeout=200)
    assert json.loads(done.stdout.splitlines()[-1]) == []
