"""Where data is: a path as it was typed, or the local mirror of a URL of an object store."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.errors import DataError, invalid
from runner.host.stores import client, mirror
from runner.host.stores.urls import ObjectPath, is_url


def local(path: str) -> Path:
    """Returns the local file or folder of a path or URL; what a URL names is copied first, if it is not yet.

    Raises:
      DataError: the store does not answer, has nothing there, or the disk is full.
    """
    if not is_url(path):
        return Path(path).expanduser()
    try:
        return mirror.local(path)
    except OSError as error:
        raise DataError(f"{path} can't be read: {_reason(error)}") from None


def shown(path: str) -> str:
    """Returns a path or URL as messages and records show it."""
    if is_url(path):
        return str(ObjectPath.of(path))
    return str(Path(path).expanduser())


def location(path: str) -> str:
    """Returns where data is, for messages and records: a URL, or an absolute path."""
    if is_url(path):
        return str(ObjectPath.of(path))
    return str(Path(path).expanduser().absolute())


def check_stored(key: str, url: str, content: str) -> None:
    """Checks that an object store has something at a URL in which `urls.problem` finds none.

    Args:
      key: whose value it is, for messages.
      url: the value.
      content: what it must be, in words.

    Raises:
      ConfigError: it has nothing there, or does not answer.
    """
    try:
        exists = bool(client.versions(ObjectPath.of(url)))
    except OSError as error:
        fix = "check the credentials in the environment and the connection"
        raise invalid(key, url, problem=f"can't be read ({_reason(error)})", fix=fix) from None
    if not exists:
        raise invalid(key, url, problem=f"does not exist, but must be {content}", fix="check the bucket and the name")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def data_dir(config: DatasetConfig) -> Path:
    """Returns the folder of prepared data.

    It is `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    """
    folder = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(folder).expanduser().absolute()
