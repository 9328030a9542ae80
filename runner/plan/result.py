"""Commands run from Python: their overrides, a process of their own, and the result as a notebook shows it."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cluster.launch import LAUNCHER_VARIABLE
from runner.config.quoting import quoted
from runner.errors import EXIT_REFUSED, ConfigError, EngineError, invalid, shown
from runner.host.late import late

if TYPE_CHECKING:
    from runner import figures
else:
    # It imports Matplotlib, which only a picture needs.
    figures = late("runner.figures")

_ERROR = "error: "
_WARNING = "warning: "
# Lines of progress, and of where MLflow shows a run, which are no result.
_PASSING = re.compile(r" \.\.\. [0-9.]+ s$|^(view with|run|all runs|charts): ")
_FORCING_A_TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
# A text that Hydra reads as itself: no number, no structure, and none of its words.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)[a-z_][a-z_0-9./-]*", re.IGNORECASE)
# What a run shows first: its other pictures are of its plan and its errors.
_FIRST = "curves.png"
# Variables of a verification whose names a picture has room for.
_MOST_DRAWN = 20


@dataclass(frozen=True)
class Picture:
    """A picture, which a notebook shows; `Path("curves.png").write_bytes(run.plot().png)` writes a file."""

    png: bytes = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.png


@dataclass(frozen=True)
class Result:
    """What a command found.

    Attributes:
      folder: what the command wrote.
      content: of its JSON file; of sweeps and comparisons, the table as a `pandas.DataFrame`.
      text: what it printed.
    """

    folder: Path
    content: Any
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        if hasattr(self.content, "to_html"):
            return str(self.content.to_html(index=False, na_rep=""))
        # Pages that notebooks are converted to set another font.
        style = "white-space:pre-wrap;font-family:monospace;line-height:1.2"
        return f'<pre style="{style}">{html.escape(self.text)}</pre>'

    def plot(self, name: str = "") -> Picture:
        """Returns a picture by its name, as `wrong`, or else the most important; a ConfigError if there is none."""
        names = [path.name for path in self.folder.glob("*.png")]
        if not names and "checks" in self.content:
            checks = sorted(self.content["checks"], key=lambda check: float(check["ratio"]))
            # Of the checks of a variable, the last one is kept, which is the nearest to failing.
            ratios = {check["variable"] or "(loss)": float(check["ratio"]) for check in checks}
            worst = sorted(ratios.items(), key=lambda item: item[1])[-_MOST_DRAWN:]
            figures.against(self.folder / "verify.png", "difference / tolerance", "variable", {"": worst})
            names = ["verify.png"]
        return Picture((self.folder / picture_of(names, name)).read_bytes())


def picture_of(names: Iterable[str], asked: str) -> str:
    """Returns the name of a picture's file, given those that there are; see `Result.plot`."""
    found = sorted(names, key=lambda name: (name != _FIRST, name))
    for name in found:
        if asked in ("", name, name.removesuffix(".png")):
            return name
    if not found:
        raise ConfigError("plot: this result has no pictures; plot its run, as runner.open_run('latest').plot()")
    raise invalid("plot", asked, problem="there is no such picture", fix=f"choose one of {', '.join(found)}")


def typed_overrides(
    overrides: Sequence[str | Mapping[str, object]], keywords: Mapping[str, object], *, sweeps: bool = False
) -> list[str]:
    """Returns the overrides of a command line, given those of a call in Python.

    Args:
      overrides: as on the command line, and mappings of keys to values; a group's may be in a mapping of its own.
      keywords: keys to values, with two underscores for each dot.
      sweeps: whether a list has the values to try, so that a key whose value is a list needs a list of lists.

    Example:
      >>> typed_overrides(["mesh=batch2", {"trainer": {"epochs": 3}}], {"optimizer__beta_1": 0.8, "name": "1.10"})
      ['mesh=batch2', 'trainer.epochs=3', 'optimizer.beta_1=0.8', "name='1.10'"]
      >>> typed_overrides([], {"model__units": [[64], [64, 64]]}, sweeps=True)
      ['model.units=[64],[64,64]']
    """
    texts: list[str] = []
    for override in (*overrides, {key.replace("__", "."): value for key, value in keywords.items()}):
        if isinstance(override, str):
            texts.append(override)
            continue
        for key, value in override.items():
            if isinstance(value, Mapping) and "." not in key:
                for name, inner in value.items():
                    texts += typed_overrides([{f"{key}.{name}": inner}], {}, sweeps=sweeps)
            elif sweeps and isinstance(value, list | tuple):
                texts.append(f"{key}={','.join(map(_value, value))}")
            else:
                texts.append(f"{key}={_value(value)}")
    return texts


def _value(value: object) -> str:
    """Returns a value as Hydra's grammar reads it; a recorded run is its id, and an array of NumPy or JAX a list."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    value = getattr(value, "run_id", value)
    if isinstance(value, str | Path):
        text = str(value)
        if _PLAIN.fullmatch(text):
            return text
        return quoted(text)
    if isinstance(value, Mapping):
        pairs = ",".join(f"{name}:{_value(inner)}" for name, inner in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    return shown(value)


def run_command(module: str, arguments: Sequence[str], *, quiet: bool = False) -> str:
    """Runs a command to its end; returns what it printed of its result.

    That appears where this process's output does, as in a cell; if quiet, only warnings, and all of it if it failed.

    Raises:
      ConfigError: its config is invalid.
      EngineError: it failed, or a signal ended it.
      KeyboardInterrupt: this process was interrupted; the command has ended before that.
    """
    # Jupyter sets these, but no cell can show a bar that moves the cursor.
    environment = {name: value for name, value in os.environ.items() if name not in _FORCING_A_TERMINAL}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**environment, "PYTHONUNBUFFERED": "1", LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines = []
    error = f"python -m {module} failed"
    try:
        for output in process.stdout:
            # Of a bar that rewrites its line, as those of downloads do, the end is left.
            line = output.decode(errors="replace").rstrip().rpartition("\r")[2]
            if line.startswith(_ERROR):
                error = line.removeprefix(_ERROR)
                continue
            lines.append(line)
            if not quiet or line.startswith(_WARNING):
                print(line, flush=True)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # a second one within a second counts as the same
        process.communicate()  # it saves the run first
        raise
    code = process.wait()
    if code == EXIT_REFUSED:
        raise ConfigError(error)
    if code:
        if quiet:
            print(*lines, sep="\n", flush=True)
        raise EngineError(error)
    return "\n".join(line for line in lines if not _PASSING.search(line))
