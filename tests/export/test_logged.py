"""The model that a run logs in MLflow, in a process that knows nothing of the run."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.nightly import nightly_except
from tests.stores import store_in

pytestmark = pytest.mark.slow

SERVE = """
import sys, json, mlflow, numpy as np, pandas as pd
from fastapi.testclient import TestClient
from mlflow.pyfunc.scoring_server import init

sys.path = [path for path in sys.path if path != sys.argv[2]]
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
(logged,) = client.search_logged_models([one.experiment_id for one in client.search_experiments()])
model = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
rows = pd.read_csv(sys.argv[3])
features = rows.drop(columns="price")
# pandas reads whole numbers as integers, which MLflow does not convert.
features = features.astype({name: float for name in features.select_dtypes("int64")})
answer = model.predict(features)["prediction"].reshape(-1)
client = TestClient(init(model))
def posted(table):
    return client.post("/invocations", content=table.to_csv(index=False), headers={"Content-Type": "text/csv"})
reply = posted(rows.drop(columns="price").head(3))
example = client.post("/invocations", json={"dataframe_split": model.input_example.to_dict("split")})
print(json.dumps({
    "mae": float(np.abs(answer - rows["price"]).mean()),
    "first": answer[:3].tolist(),
    "served": np.ravel(reply.json()["predictions"]["prediction"]).tolist(),
    "example": example.status_code,
    "fraction": posted(features.head(3).assign(rooms=2.5)).status_code,
    "types": {column.name: str(column.type) for column in model.metadata.signature.inputs},
    "modules": [name for name in sys.modules if name in ("runner", "keras", "tf_keras")],
}))
"""


def trained(folder: Path, engine: str, store: str, *words: str) -> Any:
    """Trains on the folder's files, and returns the summary of the run."""
    words = (
        f"engine={engine}",
        "dataset=arrays",
        f"dataset.path={folder}",
        "dataset.batch_size=20",
        "dataset.holdout=0",
        *words,
    )
    words = (*words, f"tracking.uri={store}", f"hydra.run.dir={folder / 'run'}")
    assert "could not log" not in forks.python("-m", "runner", *words, folder=folder).stderr
    return json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_the_logged_model_of_a_table_predicts_its_raw_rows_as_the_run_does(tmp_path: Path, engine: str) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "test.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["area", "year", "rooms", "color", "price"])
        for row in range(200):
            area, rooms = rng.normal(120, 30), int(rng.integers(1, 7))
            price = 1000 + 20 * area + 30 * rooms + 10 * (row % 3)
            table.writerow([f"{area:.3f}", 1990 + row % 20, rooms, ("red", "green", "blue")[row % 3], f"{price:.3f}"])
    (tmp_path / "train.csv").write_text((tmp_path / "test.csv").read_text())
    store = store_in(tmp_path)
    summary = trained(tmp_path, engine, store, "task=regression", "task.target=price", "trainer.epochs=3")
    arguments = (store, str(forks.ROOT), str(tmp_path / "test.csv"))
    found = forks.answer("-c", SERVE, *arguments, folder=tmp_path, PYTHONPATH="")
    assert found["mae"] == pytest.approx(summary["eval_mae"], rel=1e-4)
    assert found["served"] == pytest.approx(found["first"], rel=1e-6)
    assert found["example"] == 200
    assert found["fraction"] == 200, "a fraction where the run's rows have whole numbers"
    types = dict.fromkeys(("area", "year", "rooms"), "DataType.double") | {"color": "DataType.string"}
    assert found["types"] == types
    # TensorFlow imports Keras 3 by itself.
    assert found["modules"] == ([] if engine == "jax" else ["keras"]), (
        "served without this package and the model's Keras"
    )


@pytest.mark.parametrize("engine", nightly_except(["jax"], ["keras_dtensor", "jax"]))
def test_the_logged_model_of_images_takes_raw_bytes(tmp_path: Path, engine: str) -> None:
    rng = np.random.default_rng(0)
    label = np.arange(120) % 3
    image = (rng.integers(0, 60, (120, 6, 6, 1)) + 90 * label[:, None, None, None]).astype(np.uint8)
    for split in ("train", "test"):
        np.savez(tmp_path / f"{split}.npz", image=image, label=label)
    store = store_in(tmp_path)
    summary = trained(tmp_path, engine, store, "trainer.epochs=2")
    code = """
import sys, mlflow, numpy as np
from fastapi.testclient import TestClient
from mlflow.pyfunc.scoring_server import init

mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
(logged,) = client.search_logged_models([one.experiment_id for one in client.search_experiments()])
file = np.load(sys.argv[2])
model = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
answer = model.predict(file["image"])
reply = TestClient(init(model)).post("/invocations", json={"inputs": file["image"].tolist()})
assert reply.json()["predictions"]["class"] == answer["class"].tolist(), reply.text[:500]
print(float(np.mean(answer["class"] == file["label"])))
"""
    found = forks.answer("-c", code, store, str(tmp_path / "test.npz"), library=forks.TENSORFLOW)
    assert found == pytest.approx(summary["eval_accuracy"])
