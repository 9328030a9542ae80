"""What checkpoints in an object store cost: the same training with local ones, interleaved and repeated.

    AWS_ENDPOINT_URL=http://127.0.0.1:5000 ... python -m benchmarks.object_stores s3://bucket/bench

The time of a step includes the wait for a save, which is the copy from the devices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.checkpoints import rate
from benchmarks.contenders import ContenderError


def main() -> int:
    """Prints the table; the exit code is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="folder in an object store")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--every", type=int, default=100)
    options, overrides = parser.parse_known_args()
    console = Console(highlight=False)
    rates: dict[str, list[float]] = {"local": [], "store": []}
    with tempfile.TemporaryDirectory(prefix="object-stores-") as scratch:
        for repeat in range(options.repeats):
            # Either is first equally often, so that a machine that slows down favors none.
            for name in sorted(rates, reverse=bool(repeat % 2)):
                folder = Path(scratch) / f"{name}-{repeat}"
                place = str(folder) if name == "local" else f"{options.url}/{folder.name}"
                try:
                    rates[name].append(rate(options.every, overrides, folder, place))
                except ContenderError as error:
                    console.print(f"{name}: {error}", markup=False)
                    return 1
                console.print(f"repeat {repeat + 1}/{options.repeats}  {name}: {rates[name][-1]:.1f} steps/s")
    table = Table("checkpoints", "steps/s", "slowest", "fastest")
    for name, measured in rates.items():
        table.add_row(name, f"{statistics.median(measured):.1f}", f"{min(measured):.1f}", f"{max(measured):.1f}")
    console.print(table)
    ratio = statistics.median(rates["store"]) / statistics.median(rates["local"])
    console.print(f"store beside local: {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
