"""Composes and checks the configs that a command line of a page would run, without TensorFlow or JAX."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from PIL import Image

from runner.checkpoint.arguments import KEYS
from runner.cli import command_line
from runner.config.schema import RunConfig
from runner.host import paths
from runner.plan.checks.run import convert

# Keys that name a run of an earlier command of the page; the other overrides are checked without them.
_RECORDED = KEYS
_OF_HYDRA = ("hydra.", "hydra/", "+hydra.")
_SEARCHED = "hydra.searchpath="  # folders with the options of a project


def give_data(folder: Path) -> None:
    """Writes small files with the names that pages use for the reader's own data."""
    (folder / "houses.csv").write_text("area,rooms,price\n" + "".join(f"{n},{n % 3},{2 * n}\n" for n in range(1, 401)))
    table = pa.csv.read_csv(folder / "houses.csv")
    pq.write_table(table, folder / "houses.parquet", row_group_size=50)
    label = np.arange(400) % 4
    np.savez(folder / "scans.npz", scan=np.ones((400, 8, 8), "uint8"), dose=np.ones(400, "float32"), label=label)
    ones = np.ones(400, "int32")
    np.savez(folder / "tickets.npz", words=np.ones((400, 4), "float32"), department=ones, priority=ones)
    np.savez(folder / "tags.npz", features=np.ones((400, 4), "float32"), tags=np.ones((400, 3), "int32"))
    mask = np.arange(64).reshape(8, 8) % 3 + np.zeros((400, 1, 1), "int64")
    np.savez(folder / "images.npz", image=np.ones((400, 8, 8, 1), "float32"), mask=mask)
    np.savez(folder / "trips.npz", km=np.ones(400, "float32"), minutes=np.ones(400, "float32"))
    (folder / "notes").mkdir()
    for number in range(20):
        text = f"Note {number}.\n" + "It rained, and then it did not.\n" * 100
        (folder / "notes" / f"{number}.txt").write_text(text)
    (folder / "my_preset").mkdir()
    (folder / "my_preset" / "config.json").write_text(
        '{"class_name": "GPT2Backbone", "config": {"vocabulary_size": 50257}}'
    )
    (folder / "my_preset" / "model.weights.h5").touch()
    (folder / "tokenizer.json").write_text("{}")  # the program of the page writes it
    for kind in ("round", "square"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(80):
            Image.new("RGB", (64, 64)).save(folder / "photos" / kind / f"{number}.png")
    files = [file.read_bytes() for file in sorted((folder / "photos").rglob("*.png"))]
    pictures = pa.table({"image": files, "label": np.arange(len(files)) % 2})
    (folder / "pictures").mkdir()
    with pa.ipc.new_stream(folder / "pictures" / "train.arrow", pictures.schema) as writer:
        writer.write_table(pictures)


def give_exports(folder: Path) -> None:
    """Writes files with the names of exports that earlier commands of pages write."""
    (folder / "big").mkdir()
    (folder / "big" / "model.keras").touch()


def composed(arguments: Sequence[str]) -> list[RunConfig]:
    """Returns the configs that a command line would run; of a sweep, those with the first and last value of each key.

    Raises:
      ConfigError: the command line or the config is invalid.
      HydraException: Hydra can't compose it.
    """
    arranged = command_line.arranged(arguments)
    overrides = [one for one in arranged if not one.startswith("-")]
    # A named run needs no record of an earlier one.
    overrides = [one for one in overrides if one == "resume=auto" or one.partition("=")[0] not in _RECORDED]
    kept = [one for one in overrides if one.startswith(_SEARCHED) or not one.startswith(_OF_HYDRA)]
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        if any(one.startswith(_OF_HYDRA) for one in overrides):
            compose(
                "config",
                overrides=[one for one in overrides if one.startswith((_SEARCHED, *_OF_HYDRA))],
                return_hydra_config=True,
            )
        return [convert(compose("config", overrides=list(one))) for one in _ends(kept)]


def _ends(overrides: Sequence[str]) -> Iterator[tuple[str, ...]]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = []
    for text, one in zip(overrides, parsed, strict=True):
        if not one.is_sweep_override():
            values.append([text])
        elif one.is_discrete_sweep():
            each = [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
            values.append([each[0], each[-1]])
        else:
            interval = one.value()
            values.append([f"{one.get_key_element()}={interval.start}", f"{one.get_key_element()}={interval.end}"])
    yield from itertools.product(*values)
