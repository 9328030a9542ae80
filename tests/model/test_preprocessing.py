"""Models that rescale their images are told from those that don't, for tf_keras and for Keras 3."""

import pytest

from tests import forks
from tests.nightly import nightly_except


@pytest.mark.parametrize("keras", nightly_except(["keras"], ["keras", "tf_keras"]))
def test_models_that_rescale_bytes_are_recognized(keras: str) -> None:
    assert forks.answer("-m", "tests.model.preprocessing_worker", keras, library=forks.OF_KERAS[keras]) == []
