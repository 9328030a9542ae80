"""Actions of `runner.runs`: lists runs, keeps them, and removes checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from runner.compare.render import Sheet, console, rich_table
from runner.config.schema import CheckpointConfig, TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError, invalid
from runner.host.paths import outputs_dir, project_root
from runner.host.stores import urls
from runner.host.tables import size as size_text
from runner.runs import remove
from runner.runs.listing import KEEP_TAG, ListedRun, find, readable, select
from runner.runs.selection import Selection, age_words
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.reason import reason
from runner.tracking.store import Store
from runner.tracking.sweeps import open_tracking
from runner.training.checkpoint import index, runs
from runner.training.checkpoint.arguments import folder_of
from runner.training.checkpoint.files import DamagedError

_NO_STORE = "none"
# Checkpoints that a cell names; a run keeps a few, and the newest matter.
_STEPS_SHOWN = 4


@dataclass(frozen=True)
class Place:
    """The places in which runs are looked for.

    Attributes:
      uri: URI of the tracking store; `none`: no store; null: the default one.
      folder: folder of checkpoints; null: the default one.
    """

    uri: str | None = None
    folder: str | None = None

    @property
    def checkpoints(self) -> urls.Place:
        """Folder of the runs' checkpoints."""
        return folder_of(CheckpointConfig(folder=self.folder))

    def store(self) -> Store | None:
        """Opens the store; None if there is none, which is not created.

        Raises:
          TrackingError: it can't be used.
        """
        if self.uri == _NO_STORE:
            return None
        path = sqlite_path(tracking_uri(self.uri, project_root()))
        if path is not None and not path.exists():
            if self.uri:
                raise TrackingError(f"uri={shown(self.uri)}: {path} does not exist; set uri=<a store> or uri=none")
            return None
        return open_tracking(TrackingConfig(uri=self.uri))

    def runs(self, store: Store | None) -> list[ListedRun]:
        """Returns all runs, newest first.

        Prints a line to stderr for each that can't be read.
        """
        listed, warnings = find(store, self.checkpoints, outputs_dir() / "runs")
        _warn(warnings)
        return listed


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def show(place: Place, selection: Selection, last: int) -> int:
    """Prints a table of the selected runs.

    Args:
      place: where to look for runs.
      selection: which runs to show.
      last: shows the newest so many; 0: all.

    Returns:
      The process's exit code.
    """
    selected = select(place.runs(place.store()), selection)
    rows, warnings = readable(selected, last)
    _warn(warnings)
    if not rows:
        # Without a line here, each of the selected runs has a warning.
        if not selected and selection.is_empty:
            print("no runs yet; to start one: python -m runner", file=sys.stderr)
        elif not selected:
            print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    total = sum(run.bytes for run in selected)
    count = len(selected) - len(warnings)
    title = f"{_runs(count)}, {size_text(total)} of checkpoints in {place.checkpoints} (*: best)"
    out = console()
    out.print(rich_table(_sheet(rows), title, out.width))
    if len(rows) < count:
        print(f"{count - len(rows):,} older runs are not shown; to list all: last=0")
    return EXIT_DONE


def _sheet(listed: Sequence[ListedRun]) -> Sheet:
    titles = ["run", "name", "status", "age", "result", "checkpoints", "size"]
    rows = []
    remarks = []
    for run in listed:
        name = run.name
        if name == run.run:
            name = ""
        size = ""
        if run.saved:
            size = size_text(run.bytes)
        rows.append([_short_id(run), name, run.status, age_words(run.seconds_ago), run.result, _steps(run), size])
        remarks.append(_remark(run))
    if any(remarks):
        titles.append("")
        for cells, remark in zip(rows, remarks, strict=True):
            cells.append(remark)
    return Sheet(tuple(titles), tuple(map(tuple, rows)), frozenset({titles.index("age"), titles.index("size")}))


def _short_id(run: ListedRun) -> str:
    """Returns a run's id for a table.

    MLflow's ids are random, so eight characters identify a run.
    """
    if run.is_stored or run.is_foreign:
        return run.run[:8]
    return run.run


def _remark(run: ListedRun) -> str:
    if run.is_kept:
        return "kept"
    if run.is_foreign:
        return "in another store"
    return ""


def _steps(run: ListedRun) -> str:
    """Returns the steps of a run's last checkpoints as a cell, `*` at the best one."""
    if run.saved is None:
        return ""
    best_step = None
    with suppress(DamagedError):
        record = index.read_best(run.saved.folder)
        if record:
            best_step = record["step"]
    texts = []
    for step in run.steps[-_STEPS_SHOWN:]:
        text = str(step)
        if step == best_step:
            text += "*"
        texts.append(text)
    text = ", ".join(texts)
    if len(run.steps) > _STEPS_SHOWN:
        return f"... {text}"
    return text


def clean(place: Place, selection: Selection, *, confirmed: bool) -> int:
    """Removes the checkpoints of the selected runs, or prints which these are.

    Args:
      place: where to look for runs.
      selection: which runs to clean.
      confirmed: removes them.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: the selection has no filter.
    """
    if selection.is_empty:
        raise ConfigError("clean needs a filter: older=30d, keep=5, status=failed,killed or run=<id>")
    store = place.store()
    listed = place.runs(store)
    selected = select(listed, selection)
    removable, skipped = remove.split(selected, are_named=bool(selection.runs))
    out = console()
    for line in skipped:
        out.print(f"skipped: {line}", soft_wrap=True, markup=False)
    if not removable:
        print("nothing to remove")
        return EXIT_DONE
    summary = _summary(removable, sum(run.bytes for run in removable))
    if not confirmed:
        summary = f"would remove {summary}"
    out.print(rich_table(_sheet(removable), summary, out.width))
    for line in remove.warnings(removable, listed):
        out.print(f"note: {line}", soft_wrap=True, markup=False)
    if confirmed:
        return _remove(removable, store)
    print("nothing removed; the runs in the store would stay; to remove: add yes=true")
    return EXIT_DONE


def _remove(removable: Sequence[ListedRun], store: Store | None) -> int:
    freed = 0
    cleaned = list[ListedRun]()
    for run in removable:
        try:
            removed = remove.remove(run)
            freed += removed.bytes
            for line in removed.skipped:
                print(f"skipped: {line}")
            if store is not None and run.is_stored:
                remove.record(store, run, removed)
            cleaned.append(run)
        # The other runs are cleaned all the same.
        except (ConfigError, OSError, TrackingError) as error:
            print(f"error: could not clean run {run.run}: {error}", file=sys.stderr)
    print(f"removed: {_summary(cleaned, freed)}")
    if len(cleaned) < len(removable):
        return EXIT_FAILED
    return EXIT_DONE


def _summary(cleaned: Sequence[ListedRun], total: int) -> str:
    """Returns what is removed; `total` is the size of the checkpoints in bytes."""
    return f"checkpoints of {_runs(len(cleaned))}, {size_text(total)}"


def _runs(count: int) -> str:
    if count == 1:
        return "1 run"
    return f"{count:,} runs"


def keep(place: Place, selection: Selection, *, kept: bool) -> int:
    """Records that `clean` must skip some runs, or no longer has to.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: no run is named.
      TrackingError: the store failed.
    """
    if not selection.runs:
        raise invalid("run", None, problem="needs a run", fix="set run=latest or run=<id>")
    store = place.store()
    for run in select(place.runs(store), Selection(runs=selection.runs)):
        if run.is_foreign:
            raise invalid("run", run.run, problem="is recorded in another store", fix="set uri=<its store>")
        value = str(kept).lower()
        if store is not None and run.is_stored:
            try:
                store.client.set_tag(run.run, KEEP_TAG, value)
            # MLflow, SQLAlchemy, requests and drivers share no base class.
            except Exception as error:
                raise TrackingError(f"could not tag run {run.run}: {reason(error)}") from error
        elif run.saved is not None:
            runs.keep(run.saved, kept=kept)
        effect = "no longer skips"
        if kept:
            effect = "skips"
        where = f"recorded in {runs.RECORD}"
        if run.is_stored:
            where = f"tag {KEEP_TAG}={value}"
        print(f"run {run.run} ({run.name}): clean {effect} it ({where})")
    return EXIT_DONE
