import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests import forks


@pytest.mark.slow
def test_a_logged_model_loads_back_and_predicts_the_same_and_a_broken_one_is_a_warning(uri, tmp_path):
    command = [sys.executable, "-m", "tests.tracking.model_worker", uri, str(tmp_path)]
    done = forks.run(command, library="tensorflow", cwd=Path(__file__).parents[2], timeout=180)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    packages = ["mlflow", "tensorflow", "tf-keras", "numpy"]
    assert set(result.pop("requirements")) >= {f"{name}=={metadata.version(name)}" for name in packages}
    assert result == {
        "status": "FINISHED",
        "outputs": 1,
        "ready": "READY",
        "experiment": True,
        "metrics": {"eval/accuracy": [0.5, 7]},
        "points": 1,
        "same": [True, True],
    }
    assert "tracking: could not log the model: " in done.stderr
