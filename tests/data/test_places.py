"""Data in an object store: read as the local files are, from a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("obstore")

from runner.config.schema_data import DatasetConfig
from runner.data import checks_source, loading, places, registry
from runner.data.base import Dataset
from runner.errors import ConfigError, DataError
from runner.host.stores import client, mirror
from runner.host.stores.urls import ObjectPath
from tests.data import pictures

ROWS = 40


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirror.local.cache_clear()


def _table() -> pa.Table:
    draw = np.random.default_rng(0)
    return pa.table({"x": draw.normal(size=ROWS), "label": np.arange(ROWS) % 2})


def _csv(root: Path) -> None:
    root.mkdir()
    for split in ("train", "test"):
        _table().to_pandas().to_csv(root / f"{split}.csv", index=False)


def _parquet(root: Path) -> None:
    root.mkdir()
    for number in range(2):
        pq.write_table(_table(), root / f"train-0000{number}-of-00002.parquet", row_group_size=8)


def _arrow(root: Path) -> None:
    root.mkdir()
    file = root / "data-00000-of-00001.arrow"
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_stream(opened, _table().schema) as writer:
        writer.write_table(_table())


def _text(root: Path) -> None:
    (root / "train").mkdir(parents=True)
    (root / "train" / "notes.txt").write_text("to be or not to be " * 200)


def _images(root: Path) -> None:
    pictures.folder(root, count=12, size=(8, 8))


SOURCES: dict[str, tuple[Callable[[Path], object], dict[str, object]]] = {
    "arrays": (_csv, {}),
    "parquet": (_parquet, {}),
    "huggingface": (_arrow, {}),
    "text": (_text, {"tokenizer": "bytes", "sequence_length": 16}),
    "image_folder": (_images, {}),
}


def uploaded(root: Path, name: str) -> str:
    stored = ObjectPath("memory://test-places", name)
    for file in root.rglob("*"):
        if file.is_file():
            client.write(stored / file.relative_to(root).as_posix(), file.read_bytes())
    return str(stored)


def values_of(dataset: Dataset) -> dict[str, np.ndarray]:
    rows = np.arange(min(8, dataset.train.size))
    return {name: np.asarray(array) for name, array in dataset.train.read(rows).items()}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_reads_a_url_as_it_reads_a_folder(name: str, tmp_path: Path) -> None:
    write, keys = SOURCES[name]
    write(tmp_path / "data")
    url = uploaded(tmp_path / "data", f"{tmp_path.name}/data")
    local = loading.load(DatasetConfig(name=name, path="data", test="train", **keys))  # type: ignore[arg-type]
    config = DatasetConfig(name=name, path=url, test="train", **keys)  # type: ignore[arg-type]
    stored = loading.load(config)
    assert stored.digest == local.digest
    assert stored.name == local.name
    assert stored.source.startswith(url)
    assert registry.entry(config).import_module().location(config) == url
    expected, read = values_of(local), values_of(stored)
    assert list(read) == list(expected)
    for array, value in expected.items():
        np.testing.assert_array_equal(read[array], value, err_msg=array)


CHECKS = {
    "arrays": checks_source.check_tables,
    "parquet": checks_source.check_parquet,
    "huggingface": checks_source.check_huggingface,
    "text": checks_source.check_texts,
    "image_folder": checks_source.check_images,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_url_with_nothing_below_is_a_config_error(name: str, tmp_path: Path) -> None:
    url = f"memory://test-places/{tmp_path.name}/none"
    with pytest.raises(ConfigError, match=r"dataset\.path=memory://.*/none: does not exist, but must be a"):
        CHECKS[name](DatasetConfig(name=name, path=url))


def test_a_check_copies_nothing(tmp_path: Path) -> None:
    _csv(tmp_path / "data")
    url = uploaded(tmp_path / "data", f"{tmp_path.name}/data")
    checks_source.check_tables(DatasetConfig(name="arrays", path=url))
    assert not mirror.folder().exists()


def test_a_store_that_fails_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: ObjectPath) -> object:
        raise client.StoreError(f"{path}: no answer")

    monkeypatch.setattr(client, "versions", fails)
    with pytest.raises(ConfigError, match=r"dataset\.path=s3://b/x: can't be read \(s3://b/x: no answer\); check the"):
        checks_source.check_tables(DatasetConfig(name="arrays", path="s3://b/x"))
    with pytest.raises(DataError, match="s3://b/x can't be read: s3://b/x: no answer"):
        places.local("s3://b/x")


def test_a_local_path_is_not_changed() -> None:
    assert places.local("~/data") == Path("~/data").expanduser()
    assert places.location("data") == str(Path("data").absolute())
    assert places.shown("data") == "data"
    assert places.location("s3://bucket/data/") == "s3://bucket/data"
