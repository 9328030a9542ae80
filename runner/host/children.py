"""Child processes that run to their ends, several at a time; an error or a signal here ends those that still run."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Mapping

# Children compute for seconds to minutes: 20 ms more are not noticed, and 50 looks per second take no CPU time.
_POLL_S = 0.02

Child = subprocess.Popen[bytes]


def run_all(
    starts: Mapping[str, Callable[[], Child]],
    ended: Callable[[str, int | None], None],
    *,
    concurrency: int = 1,
    longest_s: float = math.inf,
) -> None:
    """Starts children by name, in their order, and runs them to their ends, `concurrency` at the same time.

    All of it happens in the calling thread, because Linux ends a child with the thread that started it if the child
    asks for that, and because a signal's exception must reach the one that waits.

    `ended` gets a child's name and its exit code; None: it took more than `longest_s` seconds and was killed.
    """
    waiting = dict(starts)
    running: dict[str, Child] = {}
    deadlines: dict[str, float] = {}
    try:
        while waiting or running:
            while waiting and len(running) < concurrency:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
                deadlines[name] = time.monotonic() + longest_s
            for name, child in list(running.items()):
                code = child.poll()
                is_late = code is None and time.monotonic() > deadlines[name]
                if is_late:
                    child.kill()
                    child.wait()
                if is_late or code is not None:
                    del running[name]
                    ended(name, code)
            if running:
                time.sleep(_POLL_S)
    finally:
        for child in running.values():
            child.kill()
            child.wait()
