"""The protocol message `tf.train.Example`, without TensorFlow.

Its definition is that of tensorflow/core/example/example.proto and feature.proto, which is fixed: files on disk have
it. The message has the name of TensorFlow's and a pool of its own, so that both may be imported.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow"


def _file() -> descriptor_pb2.FileDescriptorProto:
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
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


Example = _message_class()
