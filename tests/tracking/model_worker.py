"""Trains nothing: logs a tiny tf_keras MLP, loads it back and prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tf_keras

from runner.config.schema import TrackingConfig
from runner.tracking import open_tracker


def main(uri: str, root: str) -> None:
    tracker = open_tracker(
        TrackingConfig(uri=uri, experiment="tests"), run_name="model", params={"a": 1}, tags={}, root=Path(root)
    )
    model = tf_keras.Sequential(
        [tf_keras.layers.Input((4,)), tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(3)]
    )
    batch = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    tracker.log_metrics(7, {"eval/accuracy": 0.5})
    tracker.log_keras_model(model, batch)
    tracker.log_keras_model(object(), batch, "broken")
    tracker.finish("FINISHED")

    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(tracker.run_id)
    outputs = [one.model_id for one in run.outputs.model_outputs]
    logged = client.get_logged_model(outputs[0])
    mlflow.set_tracking_uri(uri)
    loaded = mlflow.pyfunc.load_model(f"models:/{outputs[0]}").predict(batch)
    native = mlflow.tensorflow.load_model(f"models:/{outputs[0]}").predict(batch, verbose=0)
    expected = model.predict(batch, verbose=0)
    result = {
        "status": run.info.status,
        "outputs": len(outputs),
        "ready": str(logged.status),
        "experiment": logged.experiment_id == run.info.experiment_id,
        "metrics": {one.key: (one.value, one.step) for one in logged.metrics or []},
        "points": len(client.get_metric_history(tracker.run_id, "eval/accuracy")),
        "same": [bool(np.array_equal(loaded, expected)), bool(np.array_equal(native, expected))],
        "requirements": Path(mlflow.pyfunc.get_model_dependencies(f"models:/{outputs[0]}")).read_text().split(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
