"""Models that rescale their images are told from those that don't, for tf_keras and for Keras 3."""

from __future__ import annotations

import pytest

from tests import forks
from tests.nightly import nightly_except

KERASES = [("keras", forks.JAX), ("tf_keras", forks.TENSORFLOW)]


@pytest.mark.parametrize(("package", "library"), nightly_except(KERASES[:1], KERASES))
def test_models_that_rescale_bytes_are_recognized(package: str, library: str) -> None:
    assert forks.answer("-m", "tests.model.preprocessing_worker", package, library=library) == []
