"""URLs of object stores, where a local folder may be named as well: which are valid."""

from __future__ import annotations

import re
from importlib.util import find_spec

_MEMORY = "memory"
# Scheme -> what its first part names.
_SCHEMES = {"s3": "bucket", "gs": "bucket", "az": "container", _MEMORY: "name"}
_PACKAGE = "obstore"

# With a slash too few it is no local path either: a checkpoint would go to a folder `s3:` of the machine's own disk.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(s3|gs|az):")
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
    if scheme not in _SCHEMES:
        # `memory://` is the memory of one process, which only tests use.
        offered = [f"{known}://" for known in _SCHEMES if known != _MEMORY]
        return f"must begin with {', '.join(offered)}, or be a local path"
    if "@" in rest.partition("/")[0]:
        return "must not contain a user or password: credentials come from the environment"
    if "?" in rest or "#" in rest:
        return "must not be a signed URL or have a query: credentials come from the environment"
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        return f"must name a {_SCHEMES[scheme]} after {scheme}://"
    parts = []
    if key:
        parts = key.removesuffix("/").split("/")
    for part in parts:
        if part in ("", ".", "..") or not _KEY.fullmatch(part):
            return "must have names of letters, digits, spaces and - _ . , + = @ between slashes"
    if find_spec(_PACKAGE) is None:
        return f"needs {_PACKAGE}, which is not installed (pip install 'mesh-runner[stores]')"
    return None
