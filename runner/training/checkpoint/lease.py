"""The lock on a run in an object store: a lease, which its holder renews and which expires.

No server frees a lock when a process ends. So the lock is an object that its holder rewrites every few seconds. Each
write is conditional on the version that the process has seen, so of several processes one succeeds. A process that
wants the lock compares versions of the object over some time, never the clocks of two machines. A process of the same
machine is looked up instead, so a start after a crash there need not wait.

A holder that was suspended for longer than a lease finds that its next renewal is rejected, and ends.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from runner.host import outputs
from runner.host.lock import HeldError
from runner.host.paths import random_part
from runner.host.stores import client
from runner.host.stores.client import ChangedError, Tag
from runner.host.stores.urls import ObjectPath
from runner.tracking import process

# Seconds between two renewals: some 9,000 requests per day.
RENEW_S = 10.0

# Seconds for which the object must stay unchanged before another process takes the lock: six renewals, so that a store
# that is slow or rejects requests for a minute ends no run.
EXPIRE_S = 60.0

# Seconds between two looks at the object of another process.
LOOK_S = 2.0

# Seconds that the end of a run waits for a renewal that is on its way.
_RELEASE_S = 5.0

# Bytes of the object. A larger one is no lease.
_LARGEST = 1 << 16


@contextmanager
def held(path: ObjectPath, say: Callable[[str], object], leave: Callable[[str], object]) -> Iterator[None]:
    """Holds the lock on a run for the block.

    Args:
      path: of the lease.
      say: is called with one line before a wait.
      leave: is called by a thread with one line if another process has taken the lock.

    Raises:
      HeldError: another process holds it.
      OSError: the store does not answer.
    """
    lease = _Lease(path, leave)
    lease.take(say)
    try:
        yield
    finally:
        lease.release()


class _Lease:
    """A lease of this process.

    **Invariant.** After `take`, the renewing thread owns `_tag` and `_renewals` until `release` has joined it.
    """

    def __init__(self, path: ObjectPath, leave: Callable[[str], object]) -> None:
        self._path = path
        self._leave = leave
        self._token = random_part()
        self._renewals = 0
        self._tag: Tag | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="run-lease", daemon=True)

    def take(self, say: Callable[[str], object]) -> None:
        """Takes the lease, and starts to renew it; raises as `held` does."""
        try:
            self._tag = self._take(say)
        except ChangedError:
            # Another process has written it since it was read here.
            raise HeldError(_holder(_read(self._path)[0])) from None
        self._thread.start()

    def _take(self, say: Callable[[str], object]) -> Tag:
        with suppress(ChangedError):
            return client.create(self._path, self._content())
        content, tag = _read(self._path)
        if not _is_free(content):
            self._wait_until_silent(content, tag, say)
        return client.replace(self._path, self._content(), tag)

    def _wait_until_silent(self, content: Mapping[str, Any], tag: Tag, say: Callable[[str], object]) -> None:
        """Waits until the holder has not renewed its lease for `EXPIRE_S`; raises HeldError if it does renew it."""
        if _is_of_this_machine(content):
            raise HeldError(_holder(content))
        say(f"waiting {EXPIRE_S:.0f} s to see whether process {_holder(content)} still has the run: {self._path}")
        began = time.monotonic()
        while time.monotonic() - began < EXPIRE_S:
            time.sleep(LOOK_S)
            now, current_tag = _read(self._path)
            if current_tag != tag:
                raise HeldError(_holder(now))

    def _content(self, *, is_free: bool = False) -> bytes:
        # The token and the number make each content unlike all others: after a lost answer, `client` takes an object
        # with the content that it has sent for its own write.
        content = {
            "token": self._token,
            "renewals": self._renewals,
            "free": is_free,
            "process": process.identity(),
        }
        return json.dumps(content).encode()

    def _renew(self) -> None:
        has_warned = False
        while not self._over.wait(RENEW_S):
            self._renewals += 1
            assert self._tag is not None
            try:
                self._tag = client.replace(self._path, self._content(), self._tag)
                has_warned = False
            except (ChangedError, FileNotFoundError):
                if not self._over.is_set():
                    self._leave(f"another process has taken the run ({self._path}); this one ends")
                return
            except OSError as error:
                # The next renewal tries again. If another process takes the run before, that renewal is rejected.
                if not has_warned:
                    has_warned = True
                    outputs.warn(f"could not renew the lock on the run: {error}")

    def release(self) -> None:
        """Marks the lease as free, so that nobody waits for it to expire."""
        self._over.set()
        self._thread.join(_RELEASE_S)
        if self._thread.is_alive() or self._tag is None:
            return
        # If the store fails now, the next process waits.
        with suppress(ChangedError, OSError):
            client.replace(self._path, self._content(is_free=True), self._tag)


def _read(path: ObjectPath) -> tuple[Mapping[str, Any], Tag]:
    """Returns the content of a lease, empty if it is none, and the tag of its version."""
    data, tag = client.read_tagged(path, _LARGEST)
    content = None
    with suppress(ValueError):
        content = json.loads(data)
    return content if isinstance(content, dict) else {}, tag


def _identity(content: Mapping[str, Any]) -> Mapping[str, str]:
    identity = content.get("process")
    if not isinstance(identity, dict):
        return {}
    return {str(key): str(value) for key, value in identity.items()}


def _is_free(content: Mapping[str, Any]) -> bool:
    """Returns whether the holder has released a lease, or is known to have ended."""
    return content.get("free") is True or process.is_gone(_identity(content))


def _is_of_this_machine(content: Mapping[str, Any]) -> bool:
    """Returns whether the holder is a process that can be looked up from here."""
    own = process.identity()
    other = _identity(content)
    boot = process.Boot.from_tag(other.get(process.BOOT, ""))
    own_boot = process.Boot.from_tag(own[process.BOOT])
    is_same_boot = bool(boot.boot_id) and boot.boot_id == own_boot.boot_id and boot.namespace == own_boot.namespace
    return is_same_boot and other.get(process.HOST) == own[process.HOST]


def _holder(content: Mapping[str, Any]) -> str:
    identity = _identity(content)
    return f"{identity.get(process.PID, '(unknown)')} on {identity.get(process.HOST, '(unknown)')}"


def leave(why: str) -> None:
    """Ends this process at once: it was suspended for so long that another one has taken its run.

    To save or to record anything would overwrite what the other process has written.
    """
    outputs.warn(why)
    os._exit(1)
