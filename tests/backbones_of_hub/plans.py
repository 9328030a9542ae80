"""Plans backbones in one process: `python -m tests.backbones_of_hub.plans FOLDER MESH NAMES`.

Writes each one's arrays into the folder, and prints a line of JSON each, see `Planned`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import runner.data
from runner import compose
from runner.config.errors import ConfigError
from runner.engine import make_engine, registry
from runner.engine.base import DataSpec
from runner.engine.jax import mesh
from runner.model import keras_hub as hub
from runner.plan.command import compile_step, on_cpu
from runner.task import make_task
from tests.backbones_of_hub import arrays, tiny

Counts = dict[str, int]


@dataclass(frozen=True)
class Planned:
    """What a plan tells of a backbone.

    Attributes:
      kind: of its case, see `tests.backbones_of_hub.arrays.kind_of`; empty: it was not built.
      refused: why it was not planned, in words.
      parameters: of the model.
      split: those that the mesh splits.
      variables: how many there are.
      split_variables: how many of them the mesh splits.
      ours: kind of collective -> how many a step of layout=auto has.
      own: likewise under KerasHub's layout map; None: it has none.
    """

    kind: str = ""
    refused: str = ""
    parameters: int = 0
    split: int = 0
    variables: int = 0
    split_variables: int = 0
    ours: Counts | None = None
    own: Counts | None = None


def overrides(name: str, kind: str, mesh_name: str, folder: Path) -> list[str]:
    """Returns the command line that all commands share."""
    keys = [f"++model.config.{key}={_written(value)}" for key, value in tiny.config(name).items()]
    chosen = [f"mesh={mesh_name}", "engine=jax", "model=keras_hub", f"model.backbone={name}", *keys]
    task = ["task=language_model", f"task.vocabulary={tiny.VOCABULARY}"] if kind == "language" else []
    data = ["dataset=arrays", f"dataset.path={folder / name}.npz", "dataset.standardize=false"]
    return [*chosen, *task, *data, "dataset.batch_size=16", "optimizer.learning_rate=0.001"]


def _written(value: object) -> str:
    """Returns a value as Hydra's command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(each) for each in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def planned(name: str, mesh_name: str, folder: Path) -> Planned:
    """Plans a backbone, or says why not."""
    try:
        backbone = arrays.built(name)
    except Exception as error:  # whatever KerasHub raises
        return Planned(refused=" ".join(f"{type(error).__name__}: {error}".split())[:200])
    kind = arrays.write(name, backbone, folder)
    words = overrides(name, kind, mesh_name, folder)
    try:
        sizes, ours = _counted([*words, "layout=auto"])
    except ConfigError as error:
        return Planned(kind, refused=str(error))
    own: Counts | None = None
    if hasattr(type(backbone), "get_layout_map"):
        try:
            own = _counted([*words, "layout=keras_hub"])[1]
        except ConfigError:  # a dim that its axis does not divide
            own = {"refused": 1}
    split = [size for size, is_split in sizes if is_split]
    return Planned(kind, "", sum(size for size, _ in sizes), sum(split), len(sizes), len(split), ours, own)


def _counted(words: list[str]) -> tuple[list[tuple[int, bool]], Counts]:
    """Returns each variable's size, and whether it is split; and the collectives of a step by kind."""
    config = on_cpu(compose(*words))
    data = runner.data.load_run(config)
    task = make_task(config.task, data.specs, data.train)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, 1, planning=True)
    engine.build()
    compile_step(engine, spec, config.dataset.batch_size, 1)
    counts: Counter[str] = Counter()
    for each in engine.collectives():
        counts[each.kind.replace("_", "-")] += each.count
    infos = engine.variables()
    return [(math.prod(infos[path].shape), any(p.spec)) for path, p in engine.placements.items()], dict(counts)


def main() -> None:
    """Prints a line for each backbone that the command line names."""
    empty = compose("engine=jax", f"mesh={sys.argv[2]}")
    registry.load(empty)
    mesh.configure(empty.mesh)  # before anything is built, which makes JAX's devices
    hub.load()
    for name in sys.argv[3:]:
        print(json.dumps({"name": name, **asdict(planned(name, sys.argv[2], Path(sys.argv[1])))}), flush=True)


if __name__ == "__main__":
    main()
