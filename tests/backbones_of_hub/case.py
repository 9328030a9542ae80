"""What is planned of a backbone, and the command line that plans and proves it; loads no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.backbones_of_hub import tiny

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
      ours: kind of collective -> how many a step has.
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


def overrides(name: str, kind: str, words: Sequence[str], folder: Path) -> list[str]:
    """Returns the command line that all commands share.

    Args:
      name: public, of the class.
      kind: of its case, see `tests.backbones_of_hub.arrays.kind_of`.
      words: that choose mesh and layout.
      folder: where the arrays lie.
    """
    keys = [f"++model.config.{key}={_written(value)}" for key, value in tiny.config(name).items()]
    chosen = [*words, "engine=jax", "model=keras_hub", f"model.backbone={name}", *keys]
    task = ["task=language_model", f"task.vocabulary={tiny.VOCABULARY}"] if kind == "language" else []
    data = ["dataset=arrays", f"dataset.path={folder / name}.npz", "dataset.standardize=false"]
    left = "|".join(tiny.UNUSED.get(name, ()))
    trained = [f"model.trainable=['(?!({left})$).*']"] if left else []
    return [*chosen, *trained, *task, *data, "dataset.batch_size=16", "optimizer.learning_rate=0.001"]


def _written(value: object) -> str:
    """Returns a value as Hydra's command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(each) for each in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
