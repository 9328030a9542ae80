from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from runner.config import search_path
from runner.config.schema import DatasetConfig
from runner.config.search_path import options_in
from runner.data import selection
from runner.data.loading import load
from runner.data.sources.tfds import cache, child
from runner.errors import ConfigError, DataError
from tests.data.conftest import ROOT, FakeCache, python


def config(root: Path, **keys: object) -> DatasetConfig:
    return DatasetConfig(data_dir=str(root), **keys)  # type: ignore[arg-type]


def test_importing_and_reading_the_cache_import_no_tensorflow(fake_cache: FakeCache) -> None:
    fake_cache.write()
    code = (
        "import json, sys; from runner.data.loading import load; from runner.config.schema import DatasetConfig;"
        "load(DatasetConfig(data_dir=sys.argv[1]));"
        "print(json.dumps(sorted({'tensorflow','tensorflow_datasets','sklearn','mlflow'} & set(sys.modules))))"
    )
    out, err = python(code, str(fake_cache.root)).communicate()
    assert json.loads(out) == [], err


def test_selections_hold_the_examples_that_their_expressions_name(fake_cache: FakeCache) -> None:
    fake_cache.write()
    dataset = load(config(fake_cache.root, train="train[10:20]+test[-2:]", test="test[:50%]"))
    assert dataset.train.arrays["image"][:, 0, 0, 0].tolist() == [*range(10, 20), 128, 129]
    assert dataset.train.arrays["label"].tolist() == [*range(10), 8, 9]
    assert dataset.test.arrays["image"][:, 0, 0, 0].tolist() == list(range(100, 115))
    assert dataset.train.arrays["image"].dtype == np.uint8
    assert dataset.train.arrays["label"].dtype == np.int32


def test_large_selections_stay_on_disk_and_small_ones_are_read(
    fake_cache: FakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cache.write()
    assert not isinstance(load(config(fake_cache.root)).train.arrays["image"], np.memmap)
    monkeypatch.setattr(selection, "RAM_BYTES", 1000)
    dataset = load(config(fake_cache.root, test="test[5:25]"))
    assert isinstance(dataset.train.arrays["image"], np.memmap)
    assert not dataset.train.arrays["image"].flags.writeable
    assert not isinstance(dataset.test.arrays["image"], np.memmap)


def test_the_digest_covers_images_labels_and_nothing_else(fake_cache: FakeCache) -> None:
    fake_cache.write()
    first = load(config(fake_cache.root, train="train[:5]")).digest
    fake_cache.write(version="4.0.0")
    assert load(config(fake_cache.root)).digest == first
    fake_cache.write(version="5.0.0", labels=np.zeros(100, np.int32))
    assert load(config(fake_cache.root)).digest != first


def test_the_newest_version_is_used_unless_one_is_named(fake_cache: FakeCache) -> None:
    for version in ("3.0.1", "3.0.10", "3.0.9"):
        fake_cache.write(version=version)
    assert load(config(fake_cache.root)).version == "3.0.10"
    assert load(config(fake_cache.root, name="mnist:3.0.9")).version == "3.0.9"


def test_a_bare_name_means_the_default_config_only(fake_cache: FakeCache) -> None:
    fake_cache.write(name="emnist", config="letters", default_config=False)
    assert load(config(fake_cache.root, name="emnist/letters")).name == "emnist/letters"
    assert cache.find(fake_cache.root, cache.Request("emnist")) is None
    fake_cache.write(name="emnist", config="byclass")
    assert load(config(fake_cache.root, name="emnist")).name == "emnist/byclass"


def test_sizes_are_cached_apart(fake_cache: FakeCache) -> None:
    assert fake_cache.write(image_size=[4, 4]).name == "mnist-3.0.1-4x4"
    assert cache.find(fake_cache.root, cache.Request("mnist")) is None
    assert load(config(fake_cache.root, image_size=[4, 4])).train.arrays["image"].shape == (100, 4, 4, 1)


def test_data_dir_falls_back_to_the_environment(fake_cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cache.write()
    monkeypatch.setenv("TFDS_DATA_DIR", str(fake_cache.root))
    assert load(DatasetConfig()).source == "a test"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"train": "train[5]"}, "dataset.train=train[5]:"),
        ({"test": "valid"}, "there is no split valid, the splits are train, test; set dataset.test=test"),
        ({"name": "namespace:thing"}, "dataset.name=namespace:thing:"),
        ({"name": "../elsewhere"}, "dataset.name=../elsewhere:"),
    ],
)
def test_values_that_cannot_work_are_rejected_in_one_line(
    fake_cache: FakeCache, keys: dict[str, object], said: str
) -> None:
    fake_cache.write()
    with pytest.raises(ConfigError) as caught:
        load(config(fake_cache.root, **keys))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_examples_whose_labels_are_withheld_are_rejected(fake_cache: FakeCache) -> None:
    fake_cache.write(labels=np.array([0, 1, -1], np.int32))
    assert load(config(fake_cache.root, train="train[:2]")).train.size == 2
    with pytest.raises(ConfigError, match="labels are withheld"):
        load(config(fake_cache.root))


def test_a_truncated_array_is_named_with_the_folder_to_remove(fake_cache: FakeCache) -> None:
    folder = fake_cache.write()
    path = folder / "train" / "images.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="delete that folder"):
        load(config(fake_cache.root))


def test_a_pickled_array_is_not_unpickled(fake_cache: FakeCache, tmp_path: Path) -> None:
    class Mine:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (tmp_path / "executed",)

    folder = fake_cache.write()
    np.save(folder / "train" / "labels.npy", np.array([Mine()], object), allow_pickle=True)
    with pytest.raises(DataError, match="corrupted"):
        load(config(fake_cache.root))
    assert not (tmp_path / "executed").exists()


def test_digits_enlarged_past_memory_are_rejected_before_they_are_made() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.image_size=\[100000,100000\]: must be at most 1545 by 1545"):
        load(DatasetConfig(name="digits", image_size=[100_000, 100_000]))


def test_digits_are_cut_the_same_way_each_time_without_overlap() -> None:
    first, second = load(DatasetConfig(name="digits")), load(DatasetConfig(name="digits", train="train[:100]"))
    assert (first.train.size, first.test.size) == (1437, 360)
    assert first.train.arrays["image"].shape[1:] == (8, 8, 1)
    assert first.train.arrays["image"].max() == 255
    assert first.digest == second.digest
    assert np.array_equal(first.train.arrays["image"][:100], second.train.arrays["image"])
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    original = sorted((*image, label) for image, label in zip(images.astype(int).tolist(), labels, strict=True))
    pixels = np.concatenate([first.train.arrays["image"], first.test.arrays["image"]]).reshape(-1, 64)
    targets = np.concatenate([first.train.arrays["label"], first.test.arrays["label"]])
    restored = np.rint(pixels / 255 * 16).astype(int).tolist()
    assert sorted((*image, label) for image, label in zip(restored, targets, strict=True)) == original


def test_digits_that_scikit_learn_does_not_contain_are_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sklearn"
    (package / "datasets" / "data").mkdir(parents=True)
    origin = str(package / "__init__.py")
    spec = importlib.machinery.ModuleSpec("sklearn", None, origin=origin)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=r"dataset=digits: .*digits\.csv\.gz can't be read \(.*No such file"):
        load(DatasetConfig(name="digits"))
    (package / "datasets" / "data" / "digits.csv.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"can't be read .*--force-reinstall"):
        load(DatasetConfig(name="digits"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="needs scikit-learn, which is not installed"):
        load(DatasetConfig(name="digits"))


def test_a_child_that_dies_becomes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_START", "import os, sys; print('the last words', file=sys.stderr); os._exit(7)")
    with pytest.raises(DataError, match=r"preparing mnist failed with exit code 7: the last words") as caught:
        load(config(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_child_ends_when_its_stdin_does_as_it_does_with_its_parent() -> None:
    code = "from runner.data.sources.tfds.worker import _end_with_parent as end; print('up', flush=True); end()"
    process = python(code)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.stdin.close()
    assert process.wait(10) == 1


# `synthetic` is a preset of `custom` with keys of its own callable.
PRESETS = [name for name in options_in(ROOT / "conf" / "dataset") if name != "synthetic"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_set_keys_of_the_schema_and_comment_on_each(name: str) -> None:
    path = ROOT / "conf" / "dataset" / f"{name}.yaml"
    preset = search_path.content_of(f"dataset/{name}")
    known = {field.name for field in dataclasses.fields(DatasetConfig)} - {"target", "options"} | {"_target_"}
    assert set(preset) <= known
    own = name in ("arrays", "image_folder", "custom", "parquet", "array_record", "huggingface", "mixture")
    text = name in ("text", "shakespeare", "pydoc")
    expected: dict[str, object] = {"name": "" if name == "tfds" else name, "test": None if own else "test"}
    expected["standardize"] = name in ("arrays", "parquet")
    expected["batch_size"] = 32 if text else 64 if own or name == "digits" else 128
    if text:
        documents = "joined" if name == "shakespeare" else "apart"
        expected |= {"tokenizer": "bytes", "sequence_length": 256, "documents": documents, "eval_batch_size": 64}
        expected["column"] = "text" if name == "text" else None
    plain = DatasetConfig()
    for key, value in preset.items():
        if key not in ("path", "_target_", "parts"):
            assert value == expected.get(key, getattr(plain, key)), key
    lines = path.read_text("utf-8").splitlines()
    assert lines[1].startswith(f"#   python -m runner dataset={name}")
    assert lines[2].startswith("defaults: [_")
    assert all(" # " in line for line in lines[3:])


def test_digits_are_enlarged_by_repeating_pixels(tmp_path: Path) -> None:
    small = load(config(tmp_path, name="digits")).train.arrays["image"]
    large = load(config(tmp_path, name="digits", image_size=[16, 28])).train.arrays["image"]
    assert large.shape == (len(small), 16, 28, 1)
    assert (large[:, ::2, [0, 4, 7, 11, 14, 18, 21, 25]] == small).all()
    assert (large[:, 0::2] == large[:, 1::2]).all()
