"""The command of `python -m runner.data`: fetches and prepares a dataset, and shows its content."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from runner import figures
from runner.cli import tables
from runner.config.convert import resolved
from runner.config.schema import RunConfig, TaskConfig
from runner.console import Console
from runner.data import contents, loading
from runner.data.base import TARGETS, Array, Dataset
from runner.engine import registry
from runner.errors import did_you_mean, invalid
from runner.host.outputs import required, spared
from runner.task import registry as tasks
from runner.task.supervised import no_array
from runner.train.record import with_config

_DRAWN = 30  # examples of a picture: five rows


def run(config: RunConfig, composed: DictConfig) -> None:
    """Loads the dataset, prints tables of its content, and writes data.json and pictures of examples."""
    console = Console()
    folder = with_config(resolved(composed, config.mesh, config.tracking.uri))
    registry.prepare(config, computes=False)
    as_stored = replace(config.dataset, standardize=False, augment=[])
    data = loading.load(as_stored, config.trainer.seed, task=config.task)
    shown = _tables(config.task, data)
    name = f"{data.name} {data.version}".rstrip()
    head = {"dataset": name, "source": data.source, "sha256": data.digest}
    console.print_lines([f"{key:9} {value}" for key, value in head.items()])
    for table in shown:
        numeric = range(1, len(table.columns))
        if table.columns[0] in ("split", "array"):
            numeric = range(0)  # its other columns have texts
        tables.show(table.columns, table.rows, table.title, numeric)
    files = [folder / "data.json"]
    with required(folder):
        content = {**head, "tables": list(map(asdict, shown))}
        files[0].write_text(json.dumps(content, indent=1) + "\n")
    image = _image(data)
    if image is not None:
        # With a fixed seed, so that the two pictures, and those of two calls, are of the same examples.
        rows = np.sort(np.random.default_rng(0).permutation(data.train.size)[:_DRAWN])
        title = f"{data.name}: {len(rows)} of {data.train.size:,} of train"
        files += _picture(data, image, rows, folder / "examples.png", title)
        if config.dataset.augment:
            augmented = replace(config.dataset, standardize=False)
            data = loading.load(augmented, config.trainer.seed, task=config.task)
            title = f"{data.name}: the same examples, augmented"
            files += _picture(data, image, rows, folder / "augmented.png", title)
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)


def _image(data: Dataset) -> str | None:
    """Returns the name of the first array of images; None: there is none."""
    return next((name for name, spec in data.specs.items() if spec.is_image), None)


def _tables(config: TaskConfig, data: Dataset) -> list[contents.Table]:
    targets = _targets(config, data)
    if data.vocabulary is not None:
        return [*contents.outline(data, targets), *contents.text_tables(data, data.vocabulary)]
    tables = contents.tables(data, targets, measures=any(entry.has_measurements for entry in tasks.entries(config)))
    if _image(data) is None:  # images are shown in pictures
        tables.append(contents.examples(data.train, data.specs))
    return tables


def _targets(config: TaskConfig, data: Dataset) -> list[str]:
    """Returns the arrays that are predicted: those of the task, else the one with a target's usual name."""
    for name in config.target:
        if name not in data.specs:
            problem = no_array(name, data.specs)
            raise invalid("task.target", name, problem=problem, fix=did_you_mean(name, data.specs, "name one of them"))
    if config.target:
        return list(config.target)
    return [name for name in TARGETS if name in data.specs][:1]


def _picture(data: Dataset, image: str, rows: Array, path: Path, title: str) -> list[Path]:
    """Draws rows of the train split; returns the file, or nothing if it can't be drawn."""
    arrays = data.train.read(rows)
    captions = []
    for index in range(len(rows)):
        cells = [contents.cell(arrays[name][index], spec) for name, spec in data.specs.items() if name != image]
        captions.append(("\n".join(cells), ""))
    with spared(str(path)):
        figures.examples(path, arrays[image], captions, title)
        return [path]
    return []
