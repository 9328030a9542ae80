"""TFDS datasets, prepared as ArrayRecord files and read as such: one by one in any order, without TensorFlow.

TFDS itself runs in a child process, see `tfds_prepare`, because it initializes TensorFlow, which must not happen here
before the mesh is set up. Data that is prepared already needs no child.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.schema_data import DatasetConfig
from runner.data import places
from runner.data.base import DataSource, Encoding, FullDataset, read_all
from runner.data.progress import report_progress
from runner.data.selection import RAM_BYTES
from runner.data.sources import array_record, text
from runner.errors import ConfigError, DataError, invalid
from runner.host import import_path
from runner.host.lock import locked

_NAME = re.compile(r"(?P<builder>\w+)(?:/(?P<config>[\w.+-]+))?(?::(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_INFO = "dataset_info.json"
# Examples that are decoded at a time for the copy in memory.
_BATCH = 256


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a builder's data; TFDS downloads and prepares it first if necessary.

    Args:
      config: the dataset's config.
      encoding: of the run that the data is read for; None: the data gets an encoding of its own.

    Raises:
      ConfigError: the value of a key does not fit this builder.
      DataError: the data is missing and can't be prepared, or is corrupted.
    """
    name = config.builder or config.name
    folder = _folder(config)
    info = json.loads((folder / _INFO).read_text("utf-8"))
    source = f"TFDS {info['name']} {folder.name}"
    if config.tokenizer is not None:
        corpus = text.Corpus(name, folder.name, source, array_record.find(str(folder)), _text_feature(folder, config))
        return text.encode_corpus(corpus, config, encoding)
    features = config.features or list(_names(info.get("supervisedKeys"))) or None
    data = array_record.load(replace(config, path=str(folder), features=features), encoding)
    splits = {split: _in_memory(source) for split, source in data.splits.items()}
    return replace(data, name=name, version=folder.name, source=source, splits=splits)


def location(config: DatasetConfig) -> str:
    """Returns the folder of prepared data, or of a text's tokens."""
    if config.tokenizer is not None:
        return str(text.folder(config))
    return str(places.data_dir(config))


def _in_memory(source: DataSource) -> DataSource:
    """Returns a source decoded into memory, if it is small enough."""
    if source.size * sum(spec.bytes for spec in source.specs.values()) > RAM_BYTES:
        return source
    return read_all(source, _BATCH)


def _folder(config: DatasetConfig) -> Path:
    """Returns the folder of the prepared data, which TFDS prepares if it does not exist."""
    root = places.data_dir(config)
    job: dict[str, Any] = {"download": config.download, "builder": config.builder, "code": None}
    if config.builder is not None:
        # The version of a user's builder may stay the same while the code changes.
        source = import_path.source_of(config.builder)
        job["code"] = hashlib.sha256(source.read_bytes() if source else b"").hexdigest()[:12]
        root = root / ".own_builders" / job["code"]
        pattern, version, lock = f"*/*/{_INFO}", None, "own"
    else:
        match = _NAME.fullmatch(config.name)
        if match is None:
            # This excludes community names such as `namespace:name`, for which TFDS would download and import code.
            raise invalid(
                "dataset.name",
                config.name,
                problem="must be a builder that TFDS ships, such as cifar10, emnist/letters or mnist:3.0.1, or digits",
                fix="try dataset.name=mnist",
            )
        pattern = "/".join(filter(None, [match["builder"], match["config"], "*", _INFO]))
        version, lock = match["version"], match["builder"]
        job["name"] = config.name
    job["root"] = str(root)
    found = _newest(root, pattern, version)
    if found is not None:
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{lock}.lock", report_progress, config.builder or config.name):
            # Another process may have prepared it while this one waited.
            return _newest(root, pattern, version) or _prepare(config, job)
    except OSError as error:
        raise DataError(
            f"{root} can't be written ({error.strerror}); prepare the data once as a user who may write there, or set "
            "dataset.data_dir to another folder"
        ) from error


def _newest(root: Path, pattern: str, version: str | None) -> Path | None:
    """Returns the folder of the newest prepared version, or of the one that is named; None if there is none."""
    found = []
    for info in root.glob(pattern):
        folder = info.parent
        is_version = folder.name == version if version else _VERSION.fullmatch(folder.name)
        if is_version and json.loads(info.read_text("utf-8")).get("fileFormat") == "array_record":
            found.append(folder)
    return max(found, key=lambda folder: list(map(int, folder.name.split("."))), default=None)


def _prepare(config: DatasetConfig, job: Mapping[str, Any]) -> Path:
    """Lets TFDS prepare the data in a child process; returns its folder."""
    name = config.builder or config.name
    report_progress(f"{name}: preparing with TFDS")
    # A user's own builder is imported from where this process would import it; accelerators belong to the run.
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    result = subprocess.run(
        [sys.executable, "-m", "runner.data.sources.tfds_prepare"],
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"},
        input=json.dumps(job),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    lines = list(filter(None, map(str.strip, result.stdout.splitlines())))
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (result.stderr.strip().splitlines() or ["nothing"])[-1]
        raise DataError(f"preparing {name} failed with exit code {result.returncode}: {last}") from None
    if "invalid" in answer:
        raise ConfigError(answer["invalid"])
    if "failed" in answer:
        raise DataError(
            f"dataset.name={name}: there is no prepared data in {job['root']}, and {answer['failed']}; prepare it on "
            "a machine with a network and set dataset.data_dir or TFDS_DATA_DIR to that folder, or use "
            "dataset=digits, which needs no network"
        )
    return Path(answer["folder"])


def _names(keys: object) -> Iterator[str]:
    """Yields the paths of the supervised features, which may be nested in any way."""
    if isinstance(keys, Mapping):
        for name, value in keys.items():
            if name == "featureKey":
                yield value
            else:
                yield from _names(value)
    elif isinstance(keys, list):
        for value in keys:
            yield from _names(value)


def _text_feature(folder: Path, config: DatasetConfig) -> str:
    """Returns the feature that has the documents: the one that the config names, else the only text feature."""
    content = json.loads((folder / "features.json").read_text("utf-8"))["featuresDict"]["features"]
    texts = [name for name, feature in content.items() if feature["pythonClassName"].endswith(".Text")]
    names = config.features or texts
    if len(names) != 1 or names[0] not in texts:
        raise invalid(
            "dataset.features",
            config.features,
            problem=f"must name one text feature of {config.name} (its text features: {', '.join(texts) or 'none'})",
            fix=f"set dataset.features=[{texts[0]}]" if texts else "remove dataset.tokenizer",
        )
    return names[0]
