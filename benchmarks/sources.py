"""Reading tables: examples per second and memory of each kind of data, beside PyArrow and Hugging Face's datasets.

    python -m benchmarks.sources
    python -m benchmarks.sources --rows 500000 --only parquet

A table of 20 columns of float32 and a label is made from a seed, in a temporary folder: as CSV, as Parquet with row
groups of 16,384 rows, and as Hugging Face's Arrow files. Each contender runs in a process of its own. It reads one
shuffled epoch in batches of 256, or for at most 20 seconds. PyArrow reads the Parquet file in its order, which is the
least that any order can cost. Memory is the peak of the process above its imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from runner.config.schema_data import DatasetConfig
from runner.data.loading import load
from runner.data.sampler import train_plan

COLUMNS = 20
ROW_GROUP = 1 << 14
BATCH = 256
SEED = 1
SECONDS = 20.0
# Rows per piece that is written.
PIECE = ROW_GROUP


def make(folder: Path, rows: int) -> None:
    """Writes the table in every format."""
    rng = np.random.default_rng(SEED)
    names = [f"x{number}" for number in range(COLUMNS)]
    csv = None
    parquet = None
    for start in range(0, rows, PIECE):
        count = min(PIECE, rows - start)
        columns: dict[str, Any] = {name: rng.random(count, np.float32) for name in names}
        columns["label"] = rng.integers(0, 10, count).astype(np.int32)
        table = pa.table(columns)
        if csv is None or parquet is None:
            csv = pyarrow.csv.CSVWriter(folder / "table.csv", table.schema)
            parquet = pq.ParquetWriter(folder / "table.parquet", table.schema)
        csv.write_table(table)
        parquet.write_table(table, row_group_size=ROW_GROUP)
    assert csv is not None
    assert parquet is not None
    csv.close()
    parquet.close()


def save_to_disk(folder: Path) -> None:
    """Writes the table as the library `datasets` does."""
    command = (
        f"import datasets; table = datasets.Dataset.from_parquet({str(folder / 'table.parquet')!r}, "
        f"cache_dir={str(folder / 'prepared')!r}); table.save_to_disk({str(folder / 'saved')!r}, num_shards=1)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    subprocess.run([sys.executable, "-c", command], env=environment, check=True, stderr=subprocess.DEVNULL)


def ours(**keys: object) -> Callable[[], Iterator[int]]:
    """Returns what reads one shuffled epoch as a run does, in calls of 16 steps."""

    def read() -> Iterator[int]:
        data = load(DatasetConfig(test="train[:1]", **keys), SEED)  # type: ignore[arg-type]
        plan = train_plan(data.train.size, batch_size=BATCH, seed=SEED, epoch=0, source=data.train)
        yield 0
        for start in range(0, plan.steps, 16):
            rows = plan.indices[start : start + 16]
            data.train.read(rows.ravel())
            yield rows.size

    return read


def pyarrow_in_order() -> Iterator[int]:
    """Reads the Parquet file in its order."""
    with pq.ParquetFile("table.parquet") as file:
        yield 0
        for batch in file.iter_batches(batch_size=BATCH * 16, use_threads=False):
            for column in batch.columns:
                column.to_numpy()
            yield batch.num_rows


def library(*, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Returns what reads the Arrow files with the library `datasets`, as NumPy arrays."""

    def read() -> Iterator[int]:
        import datasets

        table = datasets.load_from_disk("saved").with_format("numpy")
        if shuffled:
            table = table.shuffle(seed=SEED, keep_in_memory=True)
        yield 0
        for batch in table.iter(batch_size=BATCH):
            yield len(batch["label"])

    return read


def contenders() -> dict[str, Callable[[], Iterator[int]]]:
    """Returns what is compared, by name."""
    return {
        "arrays, CSV": ours(name="arrays", path="table.csv"),
        "arrays, Parquet": ours(name="arrays", path="table.parquet"),
        "parquet, exact": ours(name="parquet", path="table.parquet"),
        "PyArrow, in the file's order": pyarrow_in_order,
        "huggingface, Arrow, exact": ours(name="huggingface", path="saved"),
        "datasets, shuffled": library(shuffled=True),
        "datasets, in the files' order": library(shuffled=False),
    }


def peak_bytes() -> int:
    """Returns the largest resident size of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/status has no VmHWM")


def measure(name: str) -> None:
    """Runs one contender in this process and prints its figures as JSON."""
    reading = contenders()[name]()
    before = peak_bytes()
    began = time.perf_counter()
    next(reading)
    prepared = time.perf_counter()
    examples = 0
    for count in reading:
        examples += count
        if time.perf_counter() - prepared > SECONDS:
            break
    seconds = time.perf_counter() - prepared
    print(json.dumps([prepared - began, examples / seconds, (peak_bytes() - before) / (1 << 20)]))


def main() -> None:
    """Makes the table and runs every contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.rows)
        has_library = importlib.util.find_spec("datasets") is not None
        if has_library:
            save_to_disk(folder)
        # An empty cache, so that every contender prepares its data.
        environment = os.environ | {
            "XDG_CACHE_HOME": name,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),
        }
        for file in ("table.csv", "table.parquet"):
            print(f"{file}: {(folder / file).stat().st_size / (1 << 20):,.0f} MiB")
        print("| reads | first start (s) | examples per second | peak memory (MiB) |\n|---|---|---|---|")
        for contender in contenders():
            is_possible = has_library or contender.startswith(("arrays", "parquet", "PyArrow"))
            if options.only not in contender or not is_possible:
                continue
            command = [sys.executable, "-m", "benchmarks.sources", "--measure", contender]
            out = subprocess.run(command, cwd=name, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            start, rate, memory = json.loads(out.stdout.splitlines()[-1])
            print(f"| {contender} | {start:.1f} | {rate:,.0f} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
