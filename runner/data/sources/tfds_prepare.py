"""The child process that prepares a TFDS builder's data and writes it as Arrow files; `tfds` starts it.

Its last line on stdout is JSON, with a message as `invalid` or `failed` if there is no data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from runner.data.sources.prepared import META
from runner.errors import ConfigError, DownloadError, describe, did_you_mean, invalid

_FORMAT = "array_record"
# TFDS's own 10 retries, with growing pauses, would keep an offline run waiting for minutes.
_RETRIES = 0
# Examples per record batch.
_BATCH = 256
# What has entries: TFDS's dictionary of features is no Mapping.
_NESTED = (Mapping, tfds.features.FeaturesDict)


def _builder(name: str, root: str) -> tfds.core.DatasetBuilder:
    known = tfds.list_builders(with_community_datasets=False)
    short, _, config = name.partition(":")[0].partition("/")
    if short in known and config:
        known = [f"{short}/{other}" for other in tfds.builder_cls(short).builder_configs]
        short = f"{short}/{config}"
    try:
        if short in known:
            return tfds.builder(name, data_dir=root, file_format=_FORMAT)
        # Not one that TFDS ships, but its files may be there; no code is imported for it.
        return tfds.core.read_only_builder.builder_from_files(name, data_dir=root, file_format=_FORMAT)
    except tfds.core.registered.DatasetNotFoundError as error:
        if short not in known:
            fix = did_you_mean(short, known, "see https://www.tensorflow.org/datasets/catalog")
            raise invalid("dataset.name", short, problem="unknown TFDS builder", fix=fix) from error
        raise invalid("dataset.name", name, problem=describe(error), fix=f"try dataset.name={short}") from error


def prepare(name: str, download: bool, root: str, into: str) -> None:
    """Prepares the data of a builder, unless it is prepared, and writes it into a folder."""
    builder = _builder(name, root)
    if not builder.is_prepared():
        if not download:
            raise DownloadError("dataset.download=false forbids the download")
        downloader.MAX_RETRIES = _RETRIES
        # One folder per builder: TFDS names what it extracts after the file, and builders share file names.
        extracted = Path(root, "downloads", "extracted", builder.name)
        config = tfds.download.DownloadConfig(extract_dir=str(extracted), try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
    folder = Path(into)
    features = dict(_flat(builder.info.features))
    decoders = _as_stored(builder.info.features)
    # A split without examples shows no types, and no run can use it.
    splits = [name for name, split in builder.info.splits.items() if split.num_examples]
    for split in splits:
        _write(builder.as_data_source(split, decoders=decoders), features, folder / f"{split}.arrow")
    content = {
        "name": builder.info.full_name.rpartition("/")[0],
        "version": str(builder.version),
        "splits": splits,
        "supervised": supervised(builder.info.supervised_keys),
    }
    # Last: a folder that has this file is complete.
    (folder / META).write_text(json.dumps(content), "utf-8")


def supervised(keys: Sequence[object] | None) -> list[str]:
    """Returns the names of the supervised features; none, so that all are read, if any are nested, in whatever way."""
    names = [key for key in keys or () if isinstance(key, str)]
    return names if len(names) == len(keys or ()) else []


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, _NESTED):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _as_stored(features: Mapping[str, object]) -> dict[str, object]:
    """Returns decoders that leave images encoded."""
    decoders: dict[str, object] = {}
    for name, feature in features.items():
        if isinstance(feature, _NESTED):
            decoders[name] = _as_stored(feature)
        elif isinstance(feature, tfds.features.Image):
            decoders[name] = tfds.decode.SkipDecoding()
    return decoders


def _write(examples: Sequence[Mapping[str, object]], features: Mapping[str, object], path: Path) -> None:
    """Writes the examples of a split, with a column per feature that is bytes, text or an array of numbers."""
    labels = {}
    for name, feature in features.items():
        if isinstance(feature, tfds.features.ClassLabel):
            labels[name] = {"_type": "ClassLabel", "names": feature.names}
    fields = []
    for name, value in _flat(examples[0]):
        kind = _type_of(value, features.get(name))
        if kind is not None:
            fields.append((name, kind))
    # In the form of Hugging Face's libraries.
    schema = pa.schema(fields, {"huggingface": json.dumps({"info": {"features": labels}})})
    with pa.ipc.new_stream(path, schema) as writer:
        for start in range(0, len(examples), _BATCH):
            batch = [dict(_flat(examples[row])) for row in range(start, min(start + _BATCH, len(examples)))]
            columns = {}
            for name, kind in fields:
                values = []
                for example in batch:
                    value = example[name]
                    if not isinstance(value, bytes):
                        value = np.asarray(value).tolist()
                    values.append(value)
                columns[name] = pa.array(values, kind)
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _type_of(value: object, feature: object) -> pa.DataType | None:
    """Returns the type of a feature's column; None if it can't be one."""
    if isinstance(value, bytes):
        return pa.string() if isinstance(feature, tfds.features.Text) else pa.binary()
    # TFDS returns a single number as Python's.
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return None
    kind = pa.from_numpy_dtype(array.dtype)
    for _ in range(array.ndim):
        kind = pa.list_(kind)
    return kind


def main() -> None:
    """Calls `prepare` with the arguments that stdin has as JSON."""
    answer = {}
    try:
        prepare(**json.load(sys.stdin))
    except ConfigError as error:
        answer = {"invalid": str(error)}
    except DownloadError as error:
        answer = {"failed": str(error)}
    # Builders raise errors of any type.
    except Exception as error:
        answer = {"failed": f"TFDS failed ({describe(error)})"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
