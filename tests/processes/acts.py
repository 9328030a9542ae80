"""What processes of the tests do once they have come together; see `tests.processes.worker`."""

import errno
import json
import os
import subprocess
import sys
import threading
import time

from runner.cluster.team import current
from runner.errors import ConfigError, Interrupted
from runner.host import signals

LONG_S = 60.0


def say(**said: object) -> None:
    """Prints what the tests read."""
    print(json.dumps({"index": current().index, "pid": os.getpid(), **said}), flush=True)


def talk() -> None:
    """Uses every way to agree."""
    team = current()
    told = [team.broadcast(f"step {step}", lambda step=step: {"step": step, "by": team.index}) for step in range(50)]
    every = [team.all_gather(f"sum {step}", [team.index, step]) for step in range(50)]
    team.agree("the data's SHA-256", "aa")
    say(told=told[-1], every=every[-1], long=len(team.broadcast("much", lambda: "x" * 1_000_000)))


def differ() -> None:
    """Process 2 has other data."""
    say()
    current().agree("the data's SHA-256", "bb" if current().index == 2 else "aa")


def wait_for_all() -> None:
    """Waits for what the last one never says."""
    say()
    if current().index == current().count - 1:
        time.sleep(LONG_S)
    current().all_gather("never", None)


def stick() -> None:
    """Waits where nothing wakes it, as in a collective."""
    current().on_end(lambda why, signum: say(recorded=why, signum=signum))
    say()
    stop = signals.current()
    with stop.deferring():
        threading.Event().wait(LONG_S)


def stand_alone_last() -> None:
    """Process 1 fails by itself."""
    say()
    if current().index == 1:
        raise OSError(errno.ENOSPC, "No space left on device")
    current().all_gather("never", None)


def refuse_last() -> None:
    """Process 1 refuses, as all would."""
    if current().index == 1:
        raise ConfigError("trainer.epochs=0: at least 1; set trainer.epochs=1")
    current().all_gather("never", None)


def step() -> None:
    """Counts steps, between which a signal is asked for."""
    say()
    stop = signals.current()
    with stop.deferring():
        done = 0
        try:
            while True:
                time.sleep(0.02 * (1 + current().index))
                done += 1
                current().raise_if_requested(stop)
        except Interrupted as ended:
            say(step=done, signum=ended.signum)
            raise


def tell_itself() -> None:
    """Says how it was started, and leaves a process of its own behind."""
    left = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_S})"])
    say(
        group=os.getpgid(0),
        environment=dict(os.environ),
        arguments=sys.orig_argv[1:],
        input=sys.stdin.read(),
        left=left.pid,
    )
    print("and on stderr", file=sys.stderr, flush=True)


ACTS = {
    one.__name__: one
    for one in (*(talk, differ, wait_for_all, stick), *(stand_alone_last, refuse_last, step, tell_itself))
}
