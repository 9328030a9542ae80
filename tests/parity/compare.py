"""Runs rows on both sides, and compares what they have computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import forks, stores
from tests.parity.row import Row
from tests.parity.rows import ROWS

ROOT = Path(__file__).parents[2]
MESHES = ("single", "batch8")
_KERAS = {"jax": "keras", "keras_dtensor": "tf_keras"}
_SECONDS = 1800


@dataclass(frozen=True)
class Result:
    """What a row has shown on a mesh.

    Attributes:
      errors: name of Keras's history, or `weights` -> the largest difference, relative to the largest number; infinite
        if the runner has not recorded it, or not as often.
      rejected: the line with which the command ended; empty: it trained.
    """

    errors: dict[str, float]
    rejected: str = ""

    def problems(self, row: Row) -> list[str]:
        """Returns what differs without a reason, and the reasons of what does not differ."""
        if self.rejected:
            is_meant = "rejected" in row.meant and self.rejected.startswith("exit code 2: error: ")
            return [] if is_meant else [self.rejected]
        found = []
        for name, error in self.errors.items():
            if (error > row.tolerance) != (name in row.meant):
                found.append(f"{name}: {error:.1e}" + (", which is equal" if name in row.meant else ""))
        return found + ["is not rejected"] * ("rejected" in row.meant)


def train(rows: Sequence[Row], folder: Path, meshes: Sequence[str] = MESHES) -> None:
    """Trains rows on both sides, one process per side and engine; their files are in the folder."""
    stores.store_in(folder)
    for engine, keras in _KERAS.items():
        names = [row.name for row in rows if row.engine == engine]
        if not names:
            continue
        library = forks.OF_ENGINE[engine]
        for arguments in (["tests.parity.stock", keras], *(["tests.parity.runs", mesh] for mesh in meshes)):
            quiet = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
            forks.python("-m", *arguments, str(folder), *names, library=library, timeout=_SECONDS, **quiet)


def compared(row: Row, mesh: str, folder: Path) -> Result:
    """Compares the files of a row that was trained."""
    failed = folder / f"{row.name}.keras.txt"
    if failed.exists():
        raise RuntimeError(f"row {row.name}: Keras's own fit failed: {failed.read_text()}")
    said = folder / f"{row.name}.{mesh}.txt"
    if said.exists():
        return Result({}, said.read_text())
    expected, got = (
        {name: value.astype("float64") for name, value in np.load(folder / f"{row.name}.{side}.npz").items()}
        for side in ("keras", mesh)
    )
    errors: dict[str, float] = {}
    for name, value in expected.items():
        place = name.partition("/")[0]
        error = np.inf
        if name in got and got[name].shape == value.shape:
            difference = np.abs(got[name] - value).max(initial=0) / np.abs(value).max(initial=1e-3)
            error = np.inf if np.isnan(difference) else float(difference)
        errors[place] = max(errors.get(place, 0.0), error)
    return Result(errors)


def page() -> list[str]:
    """Returns the lines of docs/coming_from.md about what differs on purpose: the reasons, and their rows."""
    rows: dict[str, list[str]] = {}
    for each in ROWS.values():
        for reason in dict.fromkeys(each.meant.values()):
            rows.setdefault(reason, []).append(f"`{each.name}`")
    return [f"| {reason} | {', '.join(names)} |" for reason, names in rows.items()]


def table(names: Sequence[str], folder: Path) -> Iterator[str]:
    """Trains rows, and yields a line per row and mesh.

    Args:
      names: of rows; none: all.
      folder: for their files.
    """
    rows = [ROWS[name] for name in names or ROWS]
    train(rows, folder)
    for row in rows:
        for mesh in MESHES:
            result = compared(row, mesh, folder)
            problems = result.problems(row)
            verdict = "DIFFERS " + "; ".join(problems) if problems else "as Keras"
            if row.meant and not problems:
                verdict = "as meant: " + ", ".join(row.meant)
            largest = max(result.errors.values(), default=0.0)
            yield f"{row.name:34} {mesh:7} {largest:8.1e}  {verdict}"
