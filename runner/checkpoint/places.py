"""Places of checkpoints: a `Path`, or an `ObjectPath` in an object store.

This module imports no library that takes long, because every command that names a run needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from runner.config.urls import is_url


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The path of an object or of a folder of objects, with those methods of `Path` that need no access.

    Attributes:
      store: scheme and bucket, such as `s3://bucket`.
      key: the path in the bucket, without slashes at its ends; empty: the bucket itself.
    """

    store: str
    key: str

    def __str__(self) -> str:
        return f"{self.store}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.store, f"{self.key}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder that contains this object or folder."""
        return ObjectPath(self.store, self.key.rpartition("/")[0])

    def absolute(self) -> ObjectPath:
        """Returns the path itself, which is always absolute."""
        return self


# A folder or a file, local or in an object store.
Place = Path | ObjectPath


def place(text: str) -> Place:
    """Returns the place that a valid URL or a local path names; `str` of it names the same place."""
    if not is_url(text):
        return Path(text)
    parts = urlsplit(text)
    return ObjectPath(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"))
