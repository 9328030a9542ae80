"""Replays with an engine in NumPy: where one ends, and which states it records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoint import storage
from runner.checkpoint.metric_history import empty
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import SavedRun
from runner.config.schema import CheckpointConfig, LayoutConfig, MeshConfig, RunConfig
from runner.config.schema_trainer import EarlyStoppingConfig
from runner.data.base import ArraySource, ArraySpec, Dataset
from runner.errors import ConfigError
from runner.host.signals import StopRequest
from runner.verify import replay as replays
from runner.verify.replay import Recomputed, RecordedStep
from tests.configs import with_keys
from tests.numpy_engine import KnownTask
from tests.training.checkpoint import numpy_engine
from tests.training.checkpoint.test_storage import content

# No improvement is large enough, so the second evaluation ends the run.
STOPS_AT_16 = EarlyStoppingConfig("eval/accuracy", patience=1, min_delta=2.0)


class Engine(numpy_engine.NumpyEngine):
    """The engine with what a replay asks for besides; it builds and caches nothing."""

    trace = None
    caches = False

    def build(self) -> None: ...

    def cache_on_device(self, source: object) -> None: ...


def make_config(keys: dict[str, Any]) -> RunConfig:
    return with_keys(
        RunConfig(mesh=MeshConfig(axes={"batch": 1})),
        {
            "layout": LayoutConfig(inputs={"image": ["batch", None, None, None]}),
            "dataset.batch_size": 8,
            "dataset.eval_batch_size": 32,
            "trainer.epochs": 3,  # of eight steps, an evaluation after each
            "trainer.log_every_steps": 4,
            "trainer.steps_per_call": 3,
            "trainer.checkpoint": CheckpointConfig(best=None),
            **keys,
        },
    )


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that replays a run from its beginning."""

    def replay(step: int, keys: dict[str, Any], saved: Any = None) -> Recomputed:
        config = make_config(keys)
        monkeypatch.setattr(replays, "make_engine", lambda *_: Engine(16, 3))
        arrays = numpy_engine.examples()
        specs = {name: ArraySpec(array.shape[1:], str(array.dtype)) for name, array in arrays.items()}
        source = ArraySource(arrays, specs)
        task = KnownTask(specs)
        run = SavedRun(tmp_path, {"run": "r"})
        recorded = RecordedStep(run, step, None, saved, empty(["accuracy"]), 0, {})
        data = Dataset("toy", "1", source, source, None, "0", "here")
        return replays.recompute(config, data, task, recorded, tmp_path, StopRequest())

    return replay


def test_a_step_after_the_early_stop_of_the_run_is_computed(replayed: Any) -> None:
    result = replayed(20, {"replay.step": 20, "trainer.early_stopping": STOPS_AT_16})
    expected = replayed(20, {"replay.step": 20})
    np.testing.assert_array_equal(result.variables["d/kernel"], expected.variables["d/kernel"])


def test_another_optimizer_than_that_of_the_compared_checkpoint_is_invalid(replayed: Any, tmp_path: Path) -> None:
    shards = numpy_engine.NumpyEngine(16, 3).shards()
    shards["optimizer/v/d/kernel"] = shards.pop("optimizer/momentum/d/kernel")
    saved = Checkpoint(storage.write(tmp_path, replace(content(8), shards=shards)))
    with pytest.raises(ConfigError, match=r"was saved with another optimizer, .*; set optimizer and model"):
        replayed(8, {"replay.step": 8}, saved=saved)
