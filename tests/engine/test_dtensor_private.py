"""Private interfaces of TensorFlow and tf_keras that the DTensor engine leans on are there, and do what they did."""

import pytest

from tests import forks


@pytest.mark.slow
def test_every_private_interface_does_what_the_engine_takes_it_for() -> None:
    found = forks.answer("-m", "tests.engine.private_worker", library="tensorflow", TF_USE_LEGACY_KERAS="1")
    assert found["failed"] == {}, f"changed in {found['versions']}: see runner/engine/dtensor/private.py"
