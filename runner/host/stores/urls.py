"""URLs of object stores: which are valid, and `ObjectPath`, which stands where a `Path` does.

This module imports no library, because every command checks its config with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

_MEMORY = "memory"
# Scheme -> what its first part names.
SCHEMES = {"s3": "bucket", "gs": "bucket", "az": "container", _MEMORY: "name"}
PACKAGE = "obstore"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Names that every store accepts, and no character that a shell, a URL or Hydra gives a meaning.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}", re.ASCII)
_KEY = re.compile(r"[\w.,+=@ -]+")


def is_url(text: str) -> bool:
    """Returns whether a text is a URL and no local path."""
    return _URL.match(text) is not None


def is_in_memory(text: str) -> bool:
    """Returns whether a text is a URL in the memory of this process."""
    return text.startswith(f"{_MEMORY}://")


def problem(url: str) -> str | None:
    """Returns why a URL can't name a folder of an object store, or None; never repeats a part that may be secret."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        # `memory://` is the memory of one process, which only tests use.
        offered = [f"{known}://" for known in SCHEMES if known != _MEMORY]
        return f"must begin with {', '.join(offered)}, or be a local path"
    if "@" in rest.partition("/")[0]:
        return "must not contain a user or password: credentials come from the environment"
    if "?" in rest or "#" in rest:
        return "must not be a signed URL or have a query: credentials come from the environment"
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        return f"must name a {SCHEMES[scheme]} after {scheme}://"
    for part in key.removesuffix("/").split("/") if key else []:
        if part in ("", ".", "..") or not _KEY.fullmatch(part):
            return "must have names of letters, digits, spaces and - _ . , + = @ between slashes"
    if find_spec(PACKAGE) is None:
        return f"needs {PACKAGE}, which is not installed (pip install 'mesh-runner[stores]')"
    return None


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The path of an object or of a folder of objects, with those methods of `Path` that need no access.

    Attributes:
      store: scheme and bucket, such as `s3://bucket`.
      key: the path in the bucket, without slashes at its ends; empty: the bucket itself.
    """

    store: str
    key: str

    @classmethod
    def of(cls, url: str) -> ObjectPath:
        """Returns the path of a URL in which `problem` finds none."""
        parts = urlsplit(url)
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"))

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

    def as_posix(self) -> str:
        """Returns the URL."""
        return str(self)

    def absolute(self) -> ObjectPath:
        """Returns the path itself, which is always absolute."""
        return self


# A folder or a file, local or in an object store.
Place = Path | ObjectPath


def place(text: str) -> Place:
    """Returns the place that a URL or a local path names; `str` of it names the same place."""
    return ObjectPath.of(text) if is_url(text) else Path(text)
