"""A job that waits for a signal and may ask to be queued again: `python -m tests.processes.waiting`."""

from __future__ import annotations

from runner.cli import entry


def body() -> int:
    """Waits as a run trains; started again it has nothing to do."""
    import time

    from runner.processes import requeue

    job = requeue.job()
    assert job is not None
    with requeue.at_end(wanted=True):
        print(f"start {job.restarts} of {job.name}", flush=True)
        time.sleep(0.0 if job.restarts else 600.0)
    return 0


if __name__ == "__main__":
    entry.start(body)
