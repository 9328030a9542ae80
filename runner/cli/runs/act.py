"""Actions of `runner.runs`: lists, compares, cleans runs, and sends what is not in the store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint import index
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.files import DamagedError
from runner.cli.runs import clean as cleaning
from runner.cli.runs import (
    listing,
    plots,
    records,
    sheet,
)
from runner.cli.runs.listing import ListedRun
from runner.cli.runs.records import RunRecord
from runner.cli.runs.selection import (
    Selection,
    age_words,
)
from runner.config.names import varied_name
from runner.config.schema import CheckpointConfig, TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError
from runner.host import folders
from runner.host.paths import outputs_dir, project_root
from runner.host.stores import urls
from runner.host.tables import size as size_text
from runner.tracking import run_file
from runner.tracking import sync as sync_runs
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.store import Store
from runner.tracking.sweeps import find, open_tracking

_NO_STORE = "none"
_PARENT_TAG = "mlflow.parentRunId"
# Checkpoints that a cell names; a run keeps a few, and the newest matter.
_STEPS_SHOWN = 4


@dataclass(frozen=True)
class Place:
    """The places in which runs are looked for.

    Attributes:
      uri: URI of the tracking store; `none`: no store; None: the default one.
      folder: folder of checkpoints; None: the default one.
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
        """Returns all runs, newest first; prints a line to stderr for each that can't be read."""
        listed, warnings = listing.find(store, self.checkpoints)
        for line in warnings:
            print(f"warning: {line}", file=sys.stderr)
        return listed


def show(place: Place, selection: Selection, last: int) -> int:
    """Prints a table of the selected runs, the newest so many (0: all); returns the process's exit code."""
    selected = listing.select(place.runs(place.store()), selection)
    if not selected:
        is_empty = selection == Selection()
        print("no runs yet; to start one: python -m runner" if is_empty else "no runs match", file=sys.stderr)
        return EXIT_FAILED
    rows = selected[:last] if last else selected
    total = sum(run.bytes for run in selected)
    title = f"{cleaning.counted(len(selected))}, {size_text(total)} of checkpoints in {place.checkpoints} (*: best)"
    out = sheet.console()
    out.print(sheet.rich_table(_sheet(rows), title, out.width))
    if len(rows) < len(selected):
        print(f"{len(selected) - len(rows):,} older runs are not shown; to list all: last=0")
    return EXIT_DONE


def _sheet(listed: Sequence[ListedRun]) -> sheet.Sheet:
    titles = ("run", "name", "status", "age", "result", "checkpoints", "size")
    rows = []
    for run in listed:
        # MLflow's ids are random, so eight characters identify a run.
        short_id = run.run[:8] if run.record is not None else run.run
        name = "" if run.name == run.run else run.name
        size = size_text(run.bytes) if run.saved else ""
        age = age_words(run.seconds_ago)
        rows.append((short_id, name, run.status, age, run.result, _steps(run), size))
    return sheet.Sheet(titles, tuple(rows), frozenset({titles.index("age"), titles.index("size")}))


def _steps(run: ListedRun) -> str:
    """Returns the steps of a run's last checkpoints as a cell, `*` at the best one."""
    if run.saved is None:
        return ""
    best_step = None
    with suppress(DamagedError):
        record = index.read_best(run.saved.folder)
        if record:
            best_step = record["step"]
    texts = [f"{step}*" if step == best_step else str(step) for step in run.steps[-_STEPS_SHOWN:]]
    text = ", ".join(texts)
    return f"... {text}" if len(run.steps) > _STEPS_SHOWN else text


def clean(place: Place, selection: Selection, *, confirmed: bool) -> int:
    """Removes the checkpoints of the selected runs or, unless confirmed, prints which these are.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: the selection has no filter.
    """
    if selection == Selection():
        raise ConfigError("clean needs a filter: older=30d, keep=5, status=failed,killed or run=<id>")
    store = place.store()
    listed = place.runs(store)
    removable = []
    for run in listing.select(listed, selection):
        if run.saved is not None and run.status == "RUNNING":
            print(f"skipped: {run.run} is running")
        elif run.saved is not None:
            removable.append(run)
    if not removable:
        print("nothing to remove")
        return EXIT_DONE
    summary = cleaning.summary(len(removable), sum(run.bytes for run in removable))
    out = sheet.console()
    title = summary if confirmed else f"would remove {summary}"
    out.print(sheet.rich_table(_sheet(removable), title, out.width))
    for line in cleaning.notes(removable, listed):
        out.print(f"note: {line}", soft_wrap=True, markup=False)
    if confirmed:
        return cleaning.remove_all(removable, store)
    print("nothing removed; the runs in the store would stay; to remove: add yes=true")
    return EXIT_DONE


def compare(place: Place, selection: Selection, sweep: str | None, last: int, out: Path | None) -> int:
    """Prints the table of the runs that match, the best first; the keys in which they differ are its columns.

    Args:
      place: where to look for runs.
      selection: which runs to compare.
      sweep: only jobs of this sweep: its run id, its name, or latest.
      last: the newest so many, where neither runs nor a sweep are named; 0: all.
      out: a folder that gets `table.csv` and `curves.png`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: there is no such run or sweep.
      TrackingError: the store can't be used.
    """
    store = place.store()
    found: list[RunRecord] = []
    if store is not None:
        parent = find(store, sweep, []).info.run_id if sweep else None
        for run in listing.select(place.runs(store), selection):
            if run.record is not None and parent in (None, run.record.tags.get(_PARENT_TAG)):
                found.insert(0, run.record)
    if not (selection.runs or sweep):
        found = found[-last:]
    if store is None or not found:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    metric = records.judged_by(found)
    descending = records.higher_is_better(metric, found)
    lines = sheet.sort_lines(sheet.make_lines(found), metric, descending=descending)
    statuses = [line.status for line in lines]
    table = sheet.sheet_of(
        lines,
        sheet.columns(found, metric),
        lead={"run": [line.records[-1].run_id[:8] for line in lines]},
        extra={"status": statuses} if len(set(statuses)) > 1 else {},
    )
    title = f"{len(found)} runs, {len(lines)} lines"
    if not sheet.varying(found):
        title += ", all with the same config"
    console = sheet.console()
    console.print(sheet.rich_table(table, title, console.width))
    if out is not None:
        folders.claim("out", out)
        (out / "table.csv").write_text(sheet.to_csv(table))
        written = "table.csv"
        drawn = {varied_name(line.values) or line.records[-1].name: line.records[-1] for line in lines}
        if plots.curves(out / "curves.png", store.client, drawn, list(dict.fromkeys((metric, "train/loss")))):
            written += ", curves.png"
        print(f"written: {written} in {out}")
    return EXIT_DONE


def sync(place: Place) -> int:
    """Sends what runs could not send to their tracking server, from the files in their folders.

    Args:
      place: `folder` is that of the runs' own folders; null: the project's outputs.

    Returns:
      The process's exit code.
    """
    store = place.store()
    folder = Path(place.folder) if place.folder else outputs_dir()
    unsent = [path for path in sorted(folder.rglob(run_file.PATTERN)) if run_file.is_unsent(path)]
    if store is None or not unsent:
        print(f"nothing to send in {folder}")
        return EXIT_DONE
    code = EXIT_DONE
    for path in unsent:
        try:
            if sync_runs.send(store, path, print) is None:
                print(f"skipped: {path} (its process still runs, or its store is another one: set uri=<its store>)")
        except (TrackingError, OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = EXIT_FAILED
    return code
