"""What `python -m runner.data` runs: fetches and prepares a dataset, and shows what is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.table import Table as RichTable

from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data import registry as sources
from runner.data.base import TARGETS, Array, ArraySpec, Dataset, DataSource
from runner.data.checks_text import is_text
from runner.data.sources import text
from runner.engine import registry
from runner.errors import did_you_mean, invalid
from runner.host.console import Console
from runner.host.outputs import required
from runner.host.signals import heard
from runner.look import contents as look
from runner.look import picture
from runner.look import text as look_text
from runner.task import registry as tasks

_WIDTH = 160  # of a pipe or a file


def run(config: RunConfig, composed: DictConfig) -> None:
    """Loads the dataset as it is, prints what is in it, and writes data.json and pictures of examples.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.

    Raises:
      ConfigError: a key's value does not work with this dataset, or it has no such target.
      DataError: the data is not there and can't be fetched, or is broken.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed))))
    with heard():
        registry.prepare_alone(config)
        data = loading.load_run(replace(config, dataset=replace(config.dataset, standardize=False, augment=[])))
        targets = _targets(config, data)
        if data.vocabulary is not None:
            found = [*look.outline(data, targets), *look_text.tables(data, data.vocabulary)]
        else:
            found = look.tables(data, targets, measures=tasks.entry(config.task).has_measurements)
        head = _head(config, data)
        for name, line in head.items():
            console.print(f"{name:9} {line}", soft_wrap=True, markup=False)
        image = next((name for name, spec in data.specs.items() if spec.is_image), None)
        shown = [*found, *([] if image or data.vocabulary else [look.examples(data.train, data.specs)])]
        for table in shown:
            console.print(_rich(table))
        files = [folder / "data.json"]
        with required(folder):
            files[0].write_text(json.dumps({**head, "tables": [asdict(one) for one in shown]}, indent=1) + "\n")
        if image:
            files += _pictures(config, data, image, folder)
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True, markup=False)


def _targets(config: RunConfig, data: Dataset) -> list[str]:
    """Returns what is predicted: as the task says, else by its name."""
    for name in config.task.target:
        if name not in data.specs:
            allowed = f"the dataset has {', '.join(data.specs)}"
            raise invalid("task.target", name, problem=allowed, fix=did_you_mean(name, data.specs, "name one"))
    return list(config.task.target) or [name for name in TARGETS if name in data.specs][:1]


def _head(config: RunConfig, data: Dataset) -> dict[str, str]:
    location = sources.entry(config.dataset).import_module().location(config.dataset)
    head = {"dataset": f"{data.name} {data.version}".rstrip(), "source": data.source, "location": location}
    token_folder = str(text.folder(config.dataset))
    if is_text(config.dataset) and token_folder != location:
        head["tokens in"] = token_folder
    head["sha256"] = data.digest
    return head


def _pictures(config: RunConfig, data: Dataset, image: str, folder: Path) -> list[Path]:
    """Draws examples of the train split, and the same ones augmented where the config augments."""
    rows = np.sort(np.random.default_rng(0).permutation(data.train.size)[: picture.COLUMNS * picture.ROWS])
    files = [folder / "examples.png"]
    _draw(files[0], data.train, data.specs, rows, image, f"{data.name}: {len(rows)} of {data.train.size:,} of train")
    if config.dataset.augment:
        drawn = loading.load_run(replace(config, dataset=replace(config.dataset, standardize=False)))
        files.append(folder / "augmented.png")
        _draw(files[1], drawn.train, drawn.specs, rows, image, f"{data.name}: the same examples, augmented")
    return files


def _draw(path: Path, source: DataSource, specs: Mapping[str, ArraySpec], rows: Array, image: str, title: str) -> None:
    with required(path.parent):
        picture.draw(path, source.read(rows), specs, image, title)


def _rich(table: look.Table) -> RichTable:
    made = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="bold")
    for index, name in enumerate(table.columns):
        made.add_column(name, justify="left" if index == 0 or table.columns[0] in ("split", "array") else "right")
    for row in table.rows:
        made.add_row(*row)
    return made
