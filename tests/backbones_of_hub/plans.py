"""Plans backbones in one process: `python -m tests.backbones_of_hub.plans FOLDER NAMES MESH LAYOUT ...`.

Writes each one's arrays into the folder, and prints a line of JSON each, see `tests.backbones_of_hub.case.Planned`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runner import compose
from runner.data import loading
from runner.engine import make_engine, registry
from runner.engine.jax import mesh
from runner.errors import ConfigError
from runner.model import keras_hub as hub
from runner.plan.command import compile_step, on_cpu
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.backbones_of_hub import arrays
from tests.backbones_of_hub.case import Counts, Planned, overrides


def planned(name: str, words: Sequence[str], folder: Path) -> Planned:
    """Plans a backbone, or says why not.

    Args:
      name: public, of the class.
      words: that choose mesh and layout, in this order.
      folder: where its arrays are written.
    """
    try:
        backbone = arrays.built(name)
    except Exception as error:  # whatever KerasHub raises
        return Planned(refused=" ".join(f"{type(error).__name__}: {error}".split())[:200])
    kind = arrays.write(name, backbone, folder)
    try:
        sizes, ours = _counted(overrides(name, kind, words, folder))
    except ConfigError as error:
        return Planned(kind, refused=str(error))
    own: Counts | None = None
    if hasattr(type(backbone), "get_layout_map"):
        try:
            own = _counted(overrides(name, kind, [words[0], "layout=keras_hub"], folder))[1]
        except ConfigError:  # a dim that its axis does not divide
            own = {"refused": 1}
    split = [size for size, is_split in sizes if is_split]
    return Planned(kind, "", sum(size for size, _ in sizes), sum(split), len(sizes), len(split), ours, own)


def _counted(words: list[str]) -> tuple[list[tuple[int, bool]], Counts]:
    """Returns each variable's size, and whether it is split; and the collectives of a step by kind."""
    config = on_cpu(compose(*words))
    data = loading.load_run(config)
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
    folder, names, *words = sys.argv[1:]
    empty = compose("engine=jax", words[0])
    registry.load(empty)
    mesh.configure(empty.mesh)  # before anything is built, which makes JAX's devices
    hub.load()
    for name in names.split(","):
        print(json.dumps({"name": name, **asdict(planned(name, words, Path(folder)))}), flush=True)


if __name__ == "__main__":
    main()
