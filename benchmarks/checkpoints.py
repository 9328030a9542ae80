"""What checkpoints cost: the same training with and without, interleaved and repeated, medians and their ratio.

    python -m benchmarks.checkpoints                          # MNIST, mesh=batch8, a checkpoint every 100 steps
    python -m benchmarks.checkpoints --repeats 3 mesh=single dataset.data_dir=/data

Each run is a process of its own. Its rate is that of the run's own summary, whose clock runs on while a checkpoint is
taken, and stops only for evaluations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import ROOT, ContenderError, run_process
from benchmarks.ours import read_summary

_CONFIG = ("mesh=batch8", "model=mlp", "dataset=mnist", "trainer.epochs=4", "trainer.limit_eval_batches=1")
_QUIET = ("tracking=none", "trainer.progress=none", "trainer.checkpoint.every_minutes=null")
_TIMEOUT_S = 900.0


def rate(every: int | None, overrides: list[str], folder: Path, place: str | None = None) -> float:
    """Trains once; returns steps a second.

    Args:
      every: steps between checkpoints; null: none is saved.
      overrides: of the config.
      folder: where the run writes.
      place: folder or URL of its checkpoints; null: the same folder.

    Raises:
      ContenderError: the run failed.
    """
    saving = ["trainer.checkpoint.enabled=false"] if every is None else [f"trainer.checkpoint.every_steps={every}"]
    places = [
        f"hydra.run.dir={json.dumps(str(folder))}",
        f"trainer.checkpoint.folder={json.dumps(place or str(folder))}",
    ]
    command = [sys.executable, "-m", "runner", *_CONFIG, *_QUIET, *saving, *places, *overrides]
    run_process(command, os.environ, _TIMEOUT_S)
    return float(read_summary(folder / "summary.json")["steps_per_second"])


def main() -> int:
    """Prints the table and writes the JSON file; the exit code is 1 where a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "checkpoints_benchmark.json")
    given, overrides = parser.parse_known_args()
    console = Console(highlight=False)
    rates: dict[str, list[float]] = {"none": [], "some": []}
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as scratch:
        for repeat in range(given.repeats):
            for name in sorted(rates, reverse=bool(repeat % 2)):
                folder = Path(scratch) / f"{name}-{repeat}"
                try:
                    rates[name].append(rate(None if name == "none" else given.every, overrides, folder))
                except ContenderError as error:
                    console.print(f"{name}: {error}", markup=False)
                    return 1
                console.print(f"repeat {repeat + 1}/{given.repeats}  {name}: {rates[name][-1]:.1f} steps/s")
    table = Table("checkpoints", "steps/s", "slowest", "fastest")
    labels = {"none": "none", "some": f"every {given.every} steps"}
    for name, found in rates.items():
        table.add_row(labels[name], f"{statistics.median(found):.1f}", f"{min(found):.1f}", f"{max(found):.1f}")
    console.print(table)
    ratio = statistics.median(rates["some"]) / statistics.median(rates["none"])
    paired = [some / none for some, none in zip(rates["some"], rates["none"], strict=True)]
    console.print(f"with beside without: {ratio:.3f} (paired: {', '.join(f'{one:.3f}' for one in paired)})")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"every_steps": given.every, "overrides": overrides, "rates": rates, "ratio": ratio, "paired": paired}
    given.out.write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
