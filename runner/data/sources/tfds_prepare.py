"""The child process that prepares a TFDS builder's data as ArrayRecord files; `tfds` starts it.

Its last line on stdout is JSON: `folder`, or `invalid` or `failed` with a message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from runner.errors import ConfigError, DataError, describe, did_you_mean, invalid

_FORMAT = "array_record"
# TFDS's own 10 retries, with growing pauses, would keep an offline run waiting for minutes.
_RETRIES = 0


def _builder(job: Mapping[str, Any]) -> Any:
    """Returns the `tfds.core.DatasetBuilder`: one that TFDS ships, or a user's own.

    Raises:
      ConfigError: there is no such builder, config or version.
    """
    if job["builder"] is not None:
        module, _, name = job["builder"].rpartition(".")
        builder_class = getattr(import_module(module), name)
        if not (isinstance(builder_class, type) and issubclass(builder_class, tfds.core.DatasetBuilder)):
            raise invalid(
                "dataset.builder",
                job["builder"],
                problem="must be a TFDS builder class",
                fix="derive it from tfds.core.GeneratorBasedBuilder",
            )
        return builder_class(data_dir=job["root"], file_format=_FORMAT)
    known = tfds.list_builders(with_community_datasets=False)
    name, _, config = job["name"].partition(":")[0].partition("/")
    if name in known and config:
        known = [f"{name}/{other}" for other in tfds.builder_cls(name).builder_configs]
        name = f"{name}/{config}"
    if name not in known:
        fix = did_you_mean(name, known, "see https://www.tensorflow.org/datasets/catalog")
        raise invalid("dataset.name", name, problem="unknown TFDS builder", fix=fix)
    try:
        return tfds.builder(job["name"], data_dir=job["root"], file_format=_FORMAT)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise invalid("dataset.name", job["name"], problem=describe(error), fix=f"try dataset.name={name}") from error


def prepare(job: Mapping[str, Any]) -> Path:
    """Prepares a builder's data, unless it is prepared; returns its folder."""
    builder = _builder(job)
    if builder.is_prepared():
        return Path(builder.data_dir)
    if not job["download"]:
        raise DataError("dataset.download=false forbids the download")
    downloader.MAX_RETRIES = _RETRIES
    # One folder per builder: TFDS names what it extracts after the file, and builders share file names.
    extracted = Path(job["root"], "downloads", "extracted", builder.name)
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(extract_dir=str(extracted), try_download_gcs=False)
    )
    return Path(builder.data_dir)


def main() -> None:
    """Does the job that stdin has as JSON."""
    try:
        answer = {"folder": str(prepare(json.load(sys.stdin)))}
    except ConfigError as error:
        answer = {"invalid": str(error)}
    # Builders raise errors of any type.
    except Exception as error:
        answer = {"failed": str(error) if isinstance(error, DataError) else f"TFDS failed ({describe(error)})"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
