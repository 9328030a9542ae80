"""How a run ended is told by its status, its tag and a line."""

import io

import pytest
from rich.console import Console

from runner.errors import EngineError, Interrupted, TrackingError
from runner.tracking import Status, Tracker
from runner.train.record import recorded


class Seen(Tracker):
    """Keeps what it is told; `takes` says whether all of it is stored."""

    def __init__(self, run_id: str | None, *, takes: bool = True) -> None:
        self.run_id, self._takes = run_id, takes
        self.tags: dict[str, str] = {}
        self.status: Status | None = None

    def set_tags(self, tags: object) -> None:
        self.tags |= tags  # type: ignore[operator]

    def finish(self, status: Status) -> bool:
        self.status = status
        return self._takes


def ended(tracker: Seen, error: BaseException | None) -> str:
    """Returns what a run that ends so prints."""
    out = io.StringIO()
    with recorded(tracker, Console(file=out, width=200)):
        if error is not None:
            raise error
    return out.getvalue()


def test_a_signal_is_told_with_what_it_cost() -> None:
    tracker = Seen("aaaa")
    out = io.StringIO()
    with pytest.raises(Interrupted), recorded(tracker, Console(file=out, width=200)):
        raise Interrupted(15, "the state of step 7 is not saved")
    assert tracker.status == "KILLED"
    assert tracker.tags["runner.ended"] == "ended by signal 15; the state of step 7 is not saved"
    assert "the state of step 7 is not saved, the run's status is KILLED" in out.getvalue()


def test_what_a_library_made_of_a_signal_is_one_all_the_same() -> None:
    tracker, wrapped = Seen(None), ImportError("numpy.core failed to import")
    wrapped.__cause__ = KeyboardInterrupt()
    with pytest.raises(ImportError):
        ended(tracker, wrapped)
    assert (tracker.status, tracker.tags["runner.ended"]) == ("KILLED", "ended by signal 2")


def test_a_failure_is_the_tag_and_a_run_that_ended_well_fails_where_its_record_is_lost() -> None:
    tracker = Seen("aaaa")
    with pytest.raises(EngineError):
        ended(tracker, EngineError("the loss is nan"))
    assert (tracker.status, tracker.tags["runner.ended"]) == ("FAILED", "the loss is nan")
    tracker = Seen("aaaa", takes=False)
    with pytest.raises(TrackingError, match="run aaaa is not recorded completely"):
        ended(tracker, None)
    assert ended(Seen("aaaa"), None) == ""
