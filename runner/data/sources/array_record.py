"""`array_record`: files of `tf.train.Example` records, read one by one in any order, without TensorFlow.

A folder has files named as splits, as for `dataset=parquet` (`train.array_record`), or those that TFDS has prepared
with file_format=array_record (`pictures-train.array_record-00000-of-00002`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from array_record.python import array_record_module
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from runner.config.schema_data import DatasetConfig
from runner.data import images, places
from runner.data.base import Encoding, FullDataset, Rows
from runner.data.checks_source import ARRAY_RECORD_FILE, ARRAY_RECORD_SUFFIXES
from runner.data.sources import split_files, stored_tables
from runner.data.sources.split_names import canonical_splits
from runner.errors import DataError

# Files of TFDS that name the classes of a feature, one per line.
_LABELS = ".labels.txt"
# Records that are read at once. They are images at worst, of about 100 kB each.
_BLOCK = 256
# Without threads and buffers of its own: the next record is far from the last one.
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
# Characters of a library's error that a message shows.
_MAX_REASON = 300
_KINDS = {"float_list": pa.float32(), "int64_list": pa.int64()}


@dataclass(frozen=True)
class ArrayRecordTable:
    """An ArrayRecord file, as a table with a column per feature.

    The first record decides the types of the columns: a feature with one number there is a number in every record, one
    with several is a vector, and bytes are an image or a string.

    Attributes:
      path: the file.
      block_name: what a block is called in messages.
    """

    path: Path
    block_name: str = "block of records"
    # A reader has one position in its file. Workers that are threads share it.
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[ArrayRecordTable], tuple[Path]]:
        """Returns the file without its reader, for another process."""
        return ArrayRecordTable, (self.path,)

    @property
    def names(self) -> list[str]:
        """Names of the features, sorted, because a record does not order them."""
        return sorted(self._first.features.feature)

    @cached_property
    def lengths(self) -> list[int]:
        """Records of each block, into which the file is divided for the scan."""
        count = self._reader.num_records()
        return [min(_BLOCK, count - start) for start in range(0, count, _BLOCK)]

    @cached_property
    def _reader(self) -> Any:
        try:
            reader = array_record_module.ArrayRecordReader(str(self.path), _RANDOM_ACCESS)
            count = reader.num_records()
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreadable(self.path, error) from error
        if not count:
            raise DataError(f"{self.path} has no records; remove it")
        return reader

    @cached_property
    def _first(self) -> Any:
        return self._records(np.zeros(1, np.int64))[0]

    @cached_property
    def _types(self) -> Mapping[str, pa.DataType]:
        """Type of each feature's column."""
        types = {}
        for name, feature in self._first.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind == "bytes_list":
                contents = feature.bytes_list.value
                # No array has several strings. It is an error only if the feature is read.
                if len(contents) == 1:
                    types[name] = _type_of_bytes(contents[0])
            elif kind is not None:
                types[name] = _KINDS[kind]
                if len(getattr(feature, kind).value) != 1:
                    types[name] = pa.list_(_KINDS[kind])
        return types

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of a block."""
        start = number * _BLOCK
        return self.take(np.arange(start, start + self.lengths[number]), columns)

    def take(self, rows: Rows, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of some records.

        Raises:
          DataError: the file can't be read, or a record differs from the first one in more than its values.
        """
        pieces: dict[str, list[pa.Array]] = {name: [] for name in columns}
        for start in range(0, len(rows), _BLOCK):
            # A record is parsed with all of its features, such as images, so few records are in memory at once.
            part = rows[start : start + _BLOCK]
            records = self._records(part)
            for name in columns:
                pieces[name].append(self._column(name, records, part))
        return pa.table({name: pa.chunked_array(arrays) for name, arrays in pieces.items()})

    def _records(self, rows: Rows) -> list[Any]:
        """Returns some records as messages."""
        try:
            with self._lock:
                contents = self._reader.read(rows.tolist())
        except (OSError, ValueError, RuntimeError, IndexError) as error:
            raise _unreadable(self.path, error) from error
        records = []
        for row, content in zip(rows.tolist(), contents, strict=True):
            try:
                record = Example.FromString(content)
            except DecodeError as error:
                raise DataError(
                    f"{self.path}, record {row + 1} is not a tf.train.Example; write one per record"
                ) from error
            if not record.features.feature:
                raise DataError(f"{self.path}, record {row + 1} has no features; write a tf.train.Example per record")
            records.append(record)
        return records

    def _column(self, name: str, records: Sequence[Any], rows: Rows) -> pa.Array:
        """Returns a feature of some records as a column."""
        kind = self._types.get(name)
        if kind is None:
            raise DataError(
                f"{self.path}, {name} has no values, or several strings, in the first record; leave it out by naming "
                "the others in dataset.features"
            )
        is_list = pa.types.is_list(kind)
        stored_as = self._first.features.feature[name].WhichOneof("kind")
        lists = []
        for row, record in zip(rows.tolist(), records, strict=True):
            place = f"{self.path}, record {row + 1}, {name}"
            # For a name that it does not have, the map of features makes an entry without a kind.
            feature = record.features.feature[name]
            kind_here = feature.WhichOneof("kind")
            if kind_here != stored_as:
                raise DataError(
                    f"{place} is {kind_here or 'missing'}, but {stored_as} in the first record; give all records the "
                    "same features, or leave it out by naming the others in dataset.features"
                )
            values = getattr(feature, stored_as).value
            if len(values) != 1 and not is_list:
                raise DataError(
                    f"{place} has {len(values)} values, but one in the first record; pad all to one length, or leave "
                    "it out by naming the others in dataset.features"
                )
            lists.append(values)
        if stored_as == "bytes_list":
            return self._bytes_column(name, [values[0] for values in lists], rows)
        dtype = _KINDS[stored_as].to_pandas_dtype()
        numbers = np.concatenate([np.array(values, dtype) for values in lists])
        if not is_list:
            return pa.array(numbers)
        offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, numbers)

    def _bytes_column(self, name: str, contents: Sequence[bytes], rows: Rows) -> pa.Array:
        try:
            return pa.array(contents, pa.binary()).cast(self._types[name])
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{self.path}, {name} of records {rows[0] + 1} to {rows[-1] + 1} is not UTF-8, but no image in the "
                "first record; leave it out by naming the others in dataset.features"
            ) from error


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Scans the files, if they changed, and returns their sources.

    Args:
      config: its `path` is a file, a folder or a glob, and its `features` select features.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such feature; images have several sizes.
      DataError: a file can't be read, has other records, or has values that no array can represent.
    """
    assert config.path is not None
    files = {}
    for split, paths in find(config.path).items():
        files[split] = [ArrayRecordTable(path) for path in paths]
    classes: dict[Path, Mapping[str, tuple[str, ...]]] = {}
    for table in chain.from_iterable(files.values()):
        folder = table.path.parent
        # The names are those of a folder, so they are read once.
        if folder not in classes:
            classes[folder] = _classes(table)
    return stored_tables.load(files, config, encoding, classes)


def location(config: DatasetConfig) -> str:
    """Returns the file or folder."""
    assert config.path is not None
    return places.location(config.path)


def find(path: str) -> Mapping[str, Sequence[Path]]:
    """Returns the files of each split.

    Raises:
      ConfigError: TFDS has written a split test or validation there, but no split train.
    """
    folder = places.local(path)
    by_split: dict[str, list[Path]] = defaultdict(list)
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            match = ARRAY_RECORD_FILE.fullmatch(file.name)
            if match and match["shard"]:
                # TFDS: the split follows the last hyphen of `pictures-train`.
                by_split[match["name"].rpartition("-")[2]].append(file)
    if by_split:
        if "train" not in by_split:
            split_files.check_no_evaluation_split(path, by_split)
            by_split = {"train": [file for files in by_split.values() for file in files]}
        return canonical_splits(by_split, folder)
    return split_files.find(path, ARRAY_RECORD_SUFFIXES)


def _classes(file: ArrayRecordTable) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each feature that TFDS has written next to the files."""
    classes = {}
    for name in file.names:
        labels = file.path.parent / f"{name.replace('/', '-')}{_LABELS}"
        try:
            classes[name] = tuple(labels.read_text("utf-8").splitlines())
        except (OSError, ValueError):
            # No names: the labels are numbers.
            continue
    return {name: names for name, names in classes.items() if names}


def _type_of_bytes(content: bytes) -> pa.DataType:
    try:
        images.read_header(content)
    except ValueError:
        return pa.string()
    return pa.binary()


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} can't be read: {' '.join(str(error).split())[:_MAX_REASON]}")


_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow"


def _descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=_PACKAGE, syntax="proto3")
    for name, kind in (
        ("BytesList", _Field.TYPE_BYTES),
        ("FloatList", _Field.TYPE_FLOAT),
        ("Int64List", _Field.TYPE_INT64),
    ):
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, type=kind, label=_Field.LABEL_REPEATED)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        added = _add_message(feature, name.replace("List", "_list").lower(), number, name)
        added.oneof_index = 0

    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    _add_message(entry, "value", 2, "Feature")
    _add_message(features, "feature", 1, "Features.FeatureEntry").label = _Field.LABEL_REPEATED

    example = file.message_type.add(name="Example")
    _add_message(example, "features", 1, "Features")
    return file


def _add_message(message: Any, name: str, number: int, kind: str) -> Any:
    """Adds a field of another message."""
    return message.field.add(
        name=name,
        number=number,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{kind}",
        label=_Field.LABEL_OPTIONAL,
    )


def _message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


Example = _message_class()
