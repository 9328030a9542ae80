"""The table of models, meshes and layouts that verify passes: `python -m tests.verify.table [--steps 20] [words]`.

Prints a line each as it goes, and exits with 1 where one fails. Without words, all; with words, the rows that hold
every word. A word with `=` is an override for all rows: `engine=jax` holds that engine against Keras 3 on one device.
`--processes 2` takes rows of their own, on meshes whose axes cross the
processes in every way. Tests run the rows of `SHORT`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import forks

ROOT = Path(__file__).parents[2]

# Small networks: what is shown is the arithmetic of each layer, not of many.
MODELS = {
    "mlp": (),
    "convnet": (),
    "gpt": (
        *("model.dim=32", "model.depth=2", "model.heads=4", "task=language_model", "dataset=pydoc"),
        *("dataset.sequence_length=32", "dataset.batch_size=16", "trainer.limit_eval_batches=1"),
    ),
    "resnet": ("model.widths=[8,16]",),
    "vit": ("model.depth=1", "model.dim=32", "model.mlp=64", "model.dropout=0.1"),
    "user": (
        "model=custom",
        "model._target_=user_net.build",
        "mesh.axes={data:2,tensor:2,rows:2}",
        "layout.inputs.image=[data,rows,null,null]",
        "layout.inputs.label=[data]",
    ),
    "odd": (
        "model=custom",
        "model._target_=user_net.odd",
        "mesh.axes={data:2,tensor:2,rows:2}",
        "layout.inputs.image=[data,rows,null,null]",
        "layout.inputs.label=[data]",
    ),
}
_IMAGES = ("dataset=digits", "dataset.image_size=[28,28]", "dataset.batch_size=32")
# Of model=gpt; those from `remat` on are engine=jax's alone.
OPTIONS_OF_GPT = {
    "gpt2": (),
    "llama": (
        *("model.positions=rotary", "model.norm=rms", "model.activation=swiglu"),
        *("model.bias=false", "model.key_value_heads=2"),
    ),
    "tied": ("model.tied=true", "model.max_length=40"),
    "one_key_head": ("model.key_value_heads=1", "model.positions=rotary", "dataset.documents=joined"),
    "dropout": ("model.dropout=0.2", "model.norm=rms"),
    "remat": ("model.remat=full", "model.dropout=0.1"),
    "dots": ("model.remat=dots_saveable",),
    "names": ("model.remat=names", "model.saved=[query,attended,up]", "model.dropout=0.1"),
    "scan": ("model.scan=true", "model.tied=true"),
    "logits": ("model.fused_head=false",),
    # Without biases: their gradients are sums that no matrix product adds up, which bfloat16 proves to some 15% alone.
    "bfloat16": (
        *("engine.precision=bfloat16", "model.bias=false", "model.positions=rotary", "model.norm=rms"),
        *("model.activation=swiglu", "model.key_value_heads=2"),
    ),
}
# A builder outside the package, of odd sizes, with convolution, pooling, normalization and dropout.
USER_MODULE = """
def build(keras, input_shape, num_classes, width: int = 22):
    layers = keras.layers
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(6, 3, padding="same", activation="tanh", name="first")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Conv2D(6, 3, padding="same", name="depth")(x)
    x = layers.AveragePooling2D(2, name="average")(x)
    x = layers.LayerNormalization(name="layer_norm")(x)
    x = layers.Flatten(name="flat")(x)
    x = layers.Dense(width, activation="tanh", name="up")(x)
    x = layers.Dropout(0.2, name="drop")(x)
    x = layers.Dense(14, activation="tanh", name="down")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="logits")(x))


def odd(keras, input_shape, num_classes):
    sizes = (45, 30, 21)
    dense = [keras.layers.Dense(n, activation="tanh", name=f"layer{i}") for i, n in enumerate(sizes)]
    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), *dense, keras.layers.Dense(num_classes, name="logits")]
    )
"""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      model: key of `MODELS`.
      mesh: option of the group; empty where the model's overrides give the axes.
      layout: option of the group.
      extra: further overrides.
    """

    model: str
    mesh: str
    layout: str
    extra: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Returns the row in words."""
        return "-".join(part for part in (self.model, self.mesh, self.layout, *self.extra) if part)

    def overrides(self) -> list[str]:
        """Returns the command line."""
        model = [] if self.model in ("user", "odd") else [f"model={self.model}"]
        model += [] if self.model == "gpt" else _IMAGES
        mesh = [f"mesh={self.mesh}"] if self.mesh else []
        return [*model, *mesh, f"layout={self.layout}", *MODELS[self.model], *self.extra]


def _rows() -> list[Row]:
    rows = []
    for model in ("mlp", "convnet", "resnet", "vit"):
        rows += [Row(model, "batch8", layout) for layout in ("replicated", "fsdp", "auto")]
        for mesh in ("batch4_model2", "batch2_model4"):
            rows += [Row(model, mesh, layout) for layout in ("replicated", "megatron", "fsdp_megatron", "auto")]
        rows += [Row(model, "model8", layout) for layout in ("replicated", "megatron", "auto")]
        rows += [Row(model, "batch2_height2", layout) for layout in ("spatial", "fsdp_spatial")]
        rows += [Row(model, "batch2_height2_width2", layout) for layout in ("spatial", "spatial2d")]
    split = "layout.rules=[{match: up/kernel, spec: [null, tensor]}, {match: up/bias, spec: [tensor]}, "
    split += "{match: down/kernel, spec: [tensor, data]}, {match: first/kernel, spec: [null, null, null, tensor]}]"
    rows += [Row("user", "", "replicated", (split,)), Row("user", "", "auto")]
    # Products of two splits that differ: of rows and of columns, of columns and of the images.
    split = (
        "layout.rules=[{match: layer0/kernel, spec: [tensor, null]}, {match: layer1/kernel, spec: [null, tensor]}, "
    )
    split += "{match: layer2/kernel, spec: [rows, null]}]"
    rows += [Row("odd", "", "auto"), Row("odd", "", "replicated", (split,))]
    rows += [Row("odd", "", "replicated", (split, "layout.inputs.image=[data,null,null,null]"))]
    return rows


def of_gpt() -> list[Row]:
    """Returns each option of `model=gpt` on each kind of mesh, by each layout that is for transformers."""
    rows = []
    for option in OPTIONS_OF_GPT.values():
        rows += [Row("gpt", "batch8", layout, option) for layout in ("fsdp", "auto")]
        for mesh in ("batch4_model2", "batch2_model4"):
            rows += [Row("gpt", mesh, layout, option) for layout in ("megatron", "fsdp", "fsdp_megatron", "auto")]
        rows += [Row("gpt", mesh, "sequence", option) for mesh in ("batch4_sequence2", "batch2_sequence4")]
        by_tokens = ("layout.sequence=sequence", *option)
        rows += [Row("gpt", "batch4_sequence2", layout, by_tokens) for layout in ("fsdp", "auto")]
        both = ("mesh.axes={batch:2,model:2,sequence:2}", *by_tokens)
        rows += [Row("gpt", "", layout, both) for layout in ("megatron", "fsdp_megatron", "auto")]
    return rows


TABLE = _rows()
SHORT = [
    Row("mlp", "model8", "megatron"),
    Row("convnet", "batch8", "fsdp"),
    Row("convnet", "batch2_height2_width2", "spatial2d"),
    Row("resnet", "batch2_height2", "fsdp_spatial"),
    Row("vit", "batch2_model4", "fsdp_megatron"),
    Row("gpt", "batch2_model4", "fsdp_megatron", OPTIONS_OF_GPT["llama"]),
    *TABLE[-5:-2],
]


def crossing() -> list[Row]:
    """Returns rows for several processes: the batch crosses them, the model's axis lies in one or crosses them."""
    rows = []
    for model in ("mlp", "convnet", "vit", "gpt"):
        rows += [Row(model, "batch8", "fsdp")]
        rows += [Row(model, "batch4_model2", layout) for layout in ("megatron", "fsdp")]
        rows += [Row(model, "", layout, ("mesh.axes={model:2,batch:4}",)) for layout in ("megatron", "fsdp")]
    return rows


def verify(row: Row, folder: Path, steps: int, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs `runner.verify` for a row.

    Args:
      row: of the table.
      folder: to run in; a module of the user's is written there.
      steps: of training.
      more: overrides.
    """
    (folder / "user_net.py").write_text(USER_MODULE)
    command = [sys.executable, "-m", "runner.verify"]
    command += ["optimizer.learning_rate=0.001", f"verify.steps={steps}", "tracking=none"]
    command += [*row.overrides(), *more, f"hydra.run.dir={folder / 'run'}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    return forks.run(command, cwd=folder, env=environment, timeout=600)


def main() -> int:
    """Runs the rows that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args()
    failed, more = 0, [word for word in chosen.words if "=" in word]
    if chosen.processes > 1:
        more += ["engine=jax", "cluster=local", f"cluster.processes={chosen.processes}"]
    os.environ.setdefault("XLA_FLAGS", forks.SLOW_CODE)
    table = [*TABLE, *of_gpt()]
    for row in table if chosen.processes == 1 else crossing():
        if not all(word in row.name.split("-") for word in chosen.words if word not in more):
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            done = verify(row, Path(folder), chosen.steps, more)
        line = (done.stdout.strip().splitlines() or [""])[-1] if done.returncode == 0 else done.stderr.strip()
        failed += done.returncode != 0
        print(f"{done.returncode} {row.name} {time.monotonic() - start:.0f} s: {line[:300]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
