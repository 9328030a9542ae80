from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import ArraySource, Dataset, Encoding
from runner.data.loading import load
from runner.errors import ConfigError


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez(
        "a.npz",
        vector=rng.normal([5, -300], [0.1, 40], (200, 2)),
        count=rng.integers(0, 9, 200),
        constant=np.full(200, 7.0),
        tokens=rng.integers(0, 99, (200, 4)),
        image=rng.random((200, 4, 4, 1), np.float32),
        kind=np.array(["a", "b"] * 100),
        flag=np.array([True, False] * 100),
        price=rng.normal(100, 20, 200),
    )


def opened(standardize: object, encoding: Encoding | None = None, **keys: object) -> Dataset:
    config = DatasetConfig(
        **({"name": "arrays", "path": "a.npz", "test": None, "standardize": standardize} | keys)  # type: ignore[arg-type]
    )
    return load(config, 3, encoding, TaskConfig("regression", ["price"]))


def test_true_takes_float_arrays_and_columns_of_whole_numbers_and_leaves_the_target() -> None:
    plain, data = opened(False), opened(True)
    assert set(data.encoding.mean) == {"vector", "count", "constant"}
    assert isinstance(data.train, ArraySource)
    assert isinstance(plain.train, ArraySource)
    for name in ("tokens", "image", "kind", "flag", "price"):
        assert np.array_equal(data.train.arrays[name], plain.train.arrays[name]), name
        assert data.specs[name] == plain.specs[name]
    for name in ("vector", "count"):
        assert data.specs[name].dtype == "float32"
        whole = plain.train.arrays[name].astype(np.float64)
        expected = (whole - whole.mean(0)) / whole.std(0)
        np.testing.assert_allclose(data.train.arrays[name], expected, rtol=1e-6, atol=1e-6)  # float32 rounds to 6e-8
    assert (data.train.arrays["constant"] == 0).all()
    assert data.digest == plain.digest


def test_the_statistics_are_of_train_alone_and_the_other_splits_are_changed_by_them() -> None:
    plain, data = opened(False, holdout=0.25), opened(["vector"], holdout=0.25)
    mean = plain.train.read(np.arange(plain.train.size))["vector"].astype(np.float64).mean(0)
    np.testing.assert_allclose(data.encoding.mean["vector"], mean, rtol=1e-12)
    for name in ("validation", "test"):
        ours, theirs = getattr(data, name), getattr(plain, name)
        rows = np.arange(ours.size)
        back = ours.read(rows)["vector"] * data.encoding.deviation["vector"] + data.encoding.mean["vector"]
        np.testing.assert_allclose(back, theirs.read(rows)["vector"], rtol=1e-5)  # float32, divided and multiplied


def test_a_recorded_runs_statistics_serve_other_data() -> None:
    known = Encoding.from_json(opened(True).encoding.to_json())
    np.savez(
        "b.npz", vector=np.array([known.mean["vector"]] * 4), count=[1] * 4, constant=np.full(4, 9.0), price=[1.0] * 4
    )
    other = opened(["vector", "constant"], known, path="b.npz", test="train").train.read(np.arange(4))
    np.testing.assert_allclose(other["vector"], 0, atol=1e-5)
    assert other["constant"].tolist() == [2.0] * 4
    with pytest.raises(ConfigError, match="the run recorded no statistics of it"):
        opened(["price"], known)


@pytest.mark.parametrize("name", ["image", "kind", "flag", "nothing"])
def test_arrays_without_a_mean_are_rejected_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"dataset.standardize={name}: must be a numeric array"):
        opened([name])


@pytest.mark.parametrize("name", [None, "importance"])
def test_what_each_label_of_a_language_model_counts_for_is_left_as_it_is(name: str | None) -> None:
    array = name or "label_weight"
    rng = np.random.default_rng(1)
    tokens, weights = rng.integers(0, 7, (20, 4), np.int32), np.float32(rng.random((20, 4)) > 0.3)
    np.savez("lm.npz", tokens=tokens, label=tokens, **{array: weights})  # type: ignore[arg-type]
    dataset = DatasetConfig(name="arrays", path="lm.npz", test="train", standardize=True)
    data = load(dataset, task=TaskConfig("language_model", options={"label_weight": name}))
    np.testing.assert_array_equal(data.train.read(np.arange(20))[array], weights)
    assert not data.encoding.mean
