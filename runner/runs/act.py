"""What `runner.runs` does: lists runs, keeps them, and removes checkpoints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.compare.render import Sheet, console, rich_table
from runner.config.schema import CheckpointConfig, TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError, invalid
from runner.host.paths import outputs_dir, project_root
from runner.report.tables import size as words_of_size
from runner.runs import remove
from runner.runs.choice import Choice, age_words
from runner.runs.found import KEEP_TAG, Found, chosen, find, readable
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.reason import reason
from runner.tracking.store import Store
from runner.tracking.sweeps import open_tracking
from runner.training.checkpoint import index, runs
from runner.training.checkpoint.arguments import folder_of
from runner.training.checkpoint.files import DamagedError

_NONE = "none"
_STEPS = 4  # that a cell shows


@dataclass(frozen=True)
class Place:
    """Where runs are looked for.

    Attributes:
      uri: of the tracking store; `none`: in no store; null: the usual one.
      folder: of checkpoints; null: the usual one.
    """

    uri: str | None = None
    folder: Path | None = None

    @property
    def checkpoints(self) -> Path:
        """Where runs keep their checkpoints."""
        return folder_of(CheckpointConfig(folder=None if self.folder is None else str(self.folder)))

    def store(self) -> Store | None:
        """Opens the store; None where there is none, and none is made.

        Raises:
          TrackingError: it can't be used.
        """
        if self.uri == _NONE:
            return None
        path = sqlite_path(tracking_uri(self.uri, project_root()))
        if path is not None and not path.exists():
            if self.uri:
                raise TrackingError(f"uri={shown(self.uri)}: {path} is not there; name a store, or uri=none")
            return None
        return open_tracking(TrackingConfig(uri=self.uri))

    def runs(self, store: Store | None) -> list[Found]:
        """Returns the runs that there are, newest first; what can't be read is a line on stderr."""
        found, said = find(store, self.checkpoints, outputs_dir() / "runs")
        for line in said:
            print(f"warning: {line}", file=sys.stderr)
        return found


def show(place: Place, choice: Choice, last: int) -> int:
    """Prints a table of the runs that are meant.

    Args:
      place: where they are.
      choice: which are meant.
      last: the newest so many; 0: all.
    """
    found = chosen(place.runs(place.store()), choice)
    listed, said = readable(found, last)
    for line in said:
        print(f"warning: {line}", file=sys.stderr)
    if not listed and found:  # each has been named
        return EXIT_FAILED
    if not listed:
        start = "no run is recorded here; start one: python -m runner"
        print(start if choice.is_open else "no run is so", file=sys.stderr)
        return EXIT_FAILED
    total = sum(one.bytes for one in found)
    count = len(found) - len(said)
    title = f"{_runs(count)}, {words_of_size(total)} of checkpoints in {place.checkpoints} (* the best)"
    out = console()
    out.print(rich_table(_sheet(listed), title, out.width))
    if len(listed) < count:
        print(f"and {count - len(listed):,} older ones: last=0 shows all")
    return EXIT_DONE


def _sheet(found: Sequence[Found]) -> Sheet:
    rows = tuple(
        (
            one.run[:8] if one.stored or one.foreign else one.run,
            one.name if one.name != one.run else "",
            one.status,
            age_words(one.seconds_ago),
            one.result,
            _steps(one),
            words_of_size(one.bytes) if one.saved else "",
            "kept" if one.kept else "in another store" if one.foreign else "",
        )
        for one in found
    )
    titles = ("run", "name", "status", "age", "result", "checkpoints", "size", "")
    return Sheet(titles[: None if any(row[-1] for row in rows) else -1], _cut(rows), frozenset({3, 6}))


def _cut(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(rows) if any(row[-1] for row in rows) else tuple(row[:-1] for row in rows)


def _steps(one: Found) -> str:
    """Returns the steps of a run's checkpoints, with `*` at the best, as a cell shows them."""
    if one.saved is None:
        return ""
    try:
        record = index.read_best(one.saved.folder)
    except DamagedError:
        record = None
    words = [f"{step}*" if record and record["step"] == step else str(step) for step in one.steps[-_STEPS:]]
    return ("... " if len(one.steps) > _STEPS else "") + ", ".join(words)


def clean(place: Place, choice: Choice, *, really: bool, records: bool) -> int:
    """Removes the checkpoints of the runs that are meant, or says which these are.

    Args:
      place: where they are.
      choice: which are meant.
      really: whether to do it.
      records: whether the runs are deleted in the tracking store as well.

    Raises:
      ConfigError: nothing says which runs are meant.
    """
    if choice.is_open:
        raise ConfigError("clean: nothing says which runs; set older=30d, keep=5, status=failed,killed or run=<id>")
    store = place.store()
    everything = place.runs(store)
    meant = chosen(everything, choice)
    removals, left = remove.split(meant, named=bool(choice.runs), records=records)
    out = console()
    for line in left:
        out.print(f"left: {line}", soft_wrap=True, markup=False)
    if not removals:
        print("nothing to remove")
        return EXIT_DONE
    what = _what(removals, sum(one.bytes for one in removals), records=records)
    out.print(rich_table(_sheet(removals), what if really else f"would remove {what}", out.width))
    for line in remove.cautions(removals, everything):
        out.print(f"note: {line}", soft_wrap=True, markup=False)
    if not really:
        beside = "; their runs in the store too" if records else "; the runs in the store stay"
        print(f"nothing is removed yet{beside}; the same with yes=true does it")
        return EXIT_DONE
    return _remove(removals, store, records=records)


def _remove(removals: Sequence[Found], store: Store | None, *, records: bool) -> int:
    freed = 0
    done_with = list[Found]()
    for one in removals:
        try:
            done = remove.remove(one)
            freed += done.bytes
            for line in done.left:
                print(f"left: {line}")
            if store is not None and one.stored:
                remove.note(store, one, done, delete=records)
            done_with.append(one)
        except (ConfigError, OSError, TrackingError) as error:
            print(f"error: run {one.run} is left: {error}", file=sys.stderr)
    print(f"removed: {_what(done_with, freed, records=records)}")
    if records and store is not None:
        print(
            f"deleted runs can be restored (mlflow runs restore); what they logged goes with: "
            f"mlflow gc --backend-store-uri {shlex.quote(shown(store.uri))}"
        )
    return EXIT_DONE if len(done_with) == len(removals) else EXIT_FAILED


def _what(removals: Sequence[Found], taken: int, *, records: bool) -> str:
    """Returns in words what goes; `taken` is the bytes of the checkpoints."""
    saved = sum(one.saved is not None for one in removals)
    stored = sum(one.stored for one in removals)
    parts = [f"checkpoints of {_runs(saved)}, {words_of_size(taken)}"] if saved or not records else []
    return " and ".join([*parts, *([f"the records of {_runs(stored)} in the store"] if records else [])])


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def keep(place: Place, choice: Choice, *, kept: bool) -> int:
    """Notes that `clean` leaves some runs, or may take them again.

    Raises:
      ConfigError: no run is named.
      TrackingError: the store does not take it.
    """
    if not choice.runs:
        raise invalid("run", None, problem="which run", fix="set run=latest or run=<id>")
    store = place.store()
    for one in chosen(place.runs(store), Choice(runs=choice.runs)):
        if one.foreign:
            raise invalid(
                "run", one.run, problem="a run of this store, and this is another's", fix="set uri=<its store>"
            )
        if store is not None and one.stored:
            try:
                store.client.set_tag(one.run, KEEP_TAG, str(kept).lower())
            except Exception as error:  # MLflow, SQLAlchemy, requests and drivers share no base class
                raise TrackingError(f"run {one.run} can't be tagged: {reason(error)}") from error
        elif one.saved is not None:
            runs.keep(one.saved, kept=kept)
        where = f"tag {KEEP_TAG}={str(kept).lower()}" if one.stored else f"noted in {runs.RECORD}"
        print(f"run {one.run} ({one.name}): clean {'leaves it' if kept else 'may take it'}; {where}")
    return EXIT_DONE
