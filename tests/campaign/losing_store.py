"""Checkpoints of runs in a store that gets into trouble: moto's server behind `tests.object_server.Proxy`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from runner.training.checkpoint import storage
from tests import object_server
from tests.object_server import BUCKET, CUTS, THROTTLES, UNAVAILABLE, Proxy

# The next uploads of arrays, or a part of one, are answered but not stored.
PART = "lost part"
KINDS = (UNAVAILABLE, THROTTLES, CUTS, PART)
_MOST_LOST = 3

# Longer than the first tries of a request, and shorter than the time for which the runner sends it again.
_TROUBLE_S = (2.0, 25.0)

# Seconds between two looks at the store: each costs the server some milliseconds.
_LOOK_S = 0.3


@dataclass(frozen=True)
class Store:
    """A server and the proxy that runs reach it by.

    Attributes:
      proxy: whose troubles are set.
    """

    proxy: Proxy

    def folder(self, name: str) -> ObjectPath:
        """Returns a folder of checkpoints, read without the proxy's troubles by this process."""
        return ObjectPath(f"s3://{BUCKET}", name)

    def environment(self, folder: Path) -> dict[str, str]:
        """Returns what a run's environment needs, whose copies of objects are in a folder."""
        return {**self.proxy.environment(), "XDG_CACHE_HOME": str(folder / "cache")}

    def inflict(self, kind: str, draw: random.Random) -> None:
        """Does what a kind says, and waits until it has passed; a lost part is lost by the next save."""
        if kind == PART:
            self.proxy.loses += draw.randint(1, _MOST_LOST)
            return
        self.proxy.trouble = kind
        time.sleep(draw.uniform(*_TROUBLE_S))
        self.proxy.trouble = ""

    def calm(self) -> None:
        """Ends every trouble that a run has left."""
        self.proxy.trouble = ""
        self.proxy.loses = 0


@contextmanager
def losing_store(folder: Path) -> Iterator[Store | None]:
    """Runs a server for the block; None without moto.

    Args:
      folder: of the copies of what this process reads.
    """
    if object_server.interpreter() is None:
        yield None
        return
    with object_server.moto() as port, object_server.proxied(Proxy(port)) as proxy:
        changed = {
            **proxy.environment(),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        client._store.cache_clear()
        try:
            yield Store(proxy)
        finally:
            client._store.cache_clear()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def newest(folder: ObjectPath) -> int:
    """Returns the step of the newest checkpoint of a run; 0: there is none."""
    time.sleep(_LOOK_S)
    return max(storage.steps(folder), default=0)


def left_over(folder: ObjectPath) -> list[str]:
    """Returns the objects of a run that no checkpoint names, and removes them."""
    before = set(client.below(folder))
    storage.clean(folder)
    return sorted(before - set(client.below(folder)))
