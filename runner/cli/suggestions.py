"""Suggestions for names that other tools of the field use: `layout=ddp`, `lr=0.1`, `mesh=batch16`.

The nearest spelling is no help for these. Each suggestion is the option or key that does here what the name means
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.config.schema import MOST_CPU_DEVICES, MeshConfig
from runner.engine import registry

# Group -> another tool's name of one of its options -> ours.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "layout": {
        **dict.fromkeys(("ddp", "dp", "data", "data_parallel", "none", "zero0"), "replicated"),
        **dict.fromkeys(("fsdp1", "fsdp2", "zero", "zero1", "zero2", "zero3", "full_shard", "deepspeed"), "fsdp"),
        **dict.fromkeys(("tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"), "megatron"),
        **dict.fromkeys(("2d", "fsdp_tp", "tp_fsdp", "hybrid"), "fsdp_megatron"),
        **dict.fromkeys(("sp", "cp", "context", "context_parallel", "sequence_parallel", "ring"), "sequence"),
        **dict.fromkeys(("ep", "expert", "expert_parallel", "moe"), "experts"),
    },
    "optimizer": {"momentum": "sgd", "adam_w": "adamw", "rms_prop": "rmsprop", "rms": "rmsprop"},
    "engine": registry.aliases(),
    "cluster": {"slurm": "auto", "mpi": "auto", "torchrun": "auto", "kubernetes": "auto", "k8s": "auto"},
    "mesh": {"cpu": "single", "gpu": "data", "all": "data", "auto": "data", "one": "single"},
}
# Another tool's name of a key, without its group -> ours.
_KEYS: Mapping[str, str] = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    **dict.fromkeys(("seed", "random_seed", "manual_seed"), "trainer.seed"),
    **dict.fromkeys(("max_epochs", "num_epochs", "n_epochs", "num_train_epochs"), "trainer.epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "n_steps", "num_train_steps", "train_steps"), "trainer.steps"),
    **dict.fromkeys(("train_tokens", "training_tokens"), "trainer.tokens"),
    **dict.fromkeys(("eval_steps", "eval_interval", "val_check_interval"), "trainer.evaluate_every_steps"),
    **dict.fromkeys(("bs", "batchsize", "global_batch_size", "train_batch_size"), "dataset.batch_size"),
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum", "gradient_accumulation"),
        "trainer.accumulate_steps",
    ),
    **dict.fromkeys(
        ("clip_norm", "global_clipnorm", "max_grad_norm", "gradient_clip_val", "grad_clip"),
        "optimizer.clip.global_norm",
    ),
    **dict.fromkeys(("clipnorm",), "optimizer.clip.norm"),
    **dict.fromkeys(("clipvalue",), "optimizer.clip.value"),
    **dict.fromkeys(("ema_decay", "ema_momentum"), "optimizer.ema.decay"),
    **dict.fromkeys(("gpus", "devices", "num_devices", "num_gpus", "n_gpus", "num_chips"), "mesh.axes.batch"),
    **dict.fromkeys(("accelerator", "device"), "mesh.device"),
    **dict.fromkeys(("dtype", "mixed_precision", "amp", "fp16", "bf16"), "engine.precision"),
    **dict.fromkeys(("backend",), "engine"),
    **dict.fromkeys(("strategy", "parallelism"), "layout"),
    **dict.fromkeys(("world_size", "num_processes", "nproc_per_node", "num_nodes", "nnodes"), "cluster.processes"),
    **dict.fromkeys(("patience",), "trainer.early_stopping.patience"),
    **dict.fromkeys(("data_path", "data", "data_dir"), "dataset.path"),
    **dict.fromkeys(("checkpoint_dir", "ckpt_dir", "save_dir"), "trainer.checkpoint.folder"),
    **dict.fromkeys(
        ("seq_len", "max_length", "max_seq_len", "block_size", "context_length"), "dataset.sequence_length"
    ),
    **dict.fromkeys(("ckpt_path", "resume_from_checkpoint", "load"), "resume"),
}
# A mesh's option names its axes and their sizes, as batch4_model2.
_MESH = re.compile(r"(?:[a-z]+\d+)(?:_?[a-z]+\d+)*")
# Other tools' short names of an axis -> ours.
_AXES = {
    **dict.fromkeys(("data", "dp", "ddp", "fsdp", "replica", "gpu", "cpu", "tpu", "device", "devices"), "batch"),
    **dict.fromkeys(("tp", "mp", "tensor"), "model"),
    **dict.fromkeys(("sp", "cp", "seq", "context"), "sequence"),
    **dict.fromkeys(("ep", "expert"), "experts"),
}


def option(group: str, name: str) -> str | None:
    """Returns the fix for an option that does not exist, if its name is known in the field.

    Args:
      group: the config group.
      name: the option, as typed.

    Example:
      >>> option("layout", "zero3")
      'did you mean layout=fsdp?'
      >>> option("mesh", "batch16")
      'any size works: mesh.axes.batch=16 (on a CPU with mesh.cpu_devices=16)'
    """
    lowered = name.lower().replace("-", "_")
    ours = _OPTIONS.get(group, {}).get(lowered)
    if ours is not None:
        return f"did you mean {group}={ours}?"
    if group == "mesh" and _MESH.fullmatch(lowered):
        return _mesh(lowered)
    return None


def _mesh(name: str) -> str | None:
    """Returns the fix for an option with axes and sizes; None if a size is 0 or an axis occurs twice."""
    axes: dict[str, int] = {}
    devices = 1
    for axis, digits in re.findall(r"([a-z]+)(\d+)", name):
        axis = _AXES.get(axis, axis)
        size = int(digits)
        if size < 1 or axis in axes:
            return None
        axes[axis] = size
        devices *= size
    if list(axes) == ["batch"]:
        fix = f"any size works: mesh.axes.batch={devices}"
    else:
        sizes = ", ".join(f"{axis}: {size}" for axis, size in axes.items())
        fix = f"any size works: mesh.axes='{{{sizes}}}'"
    if devices > MOST_CPU_DEVICES:
        fix += f" (a CPU has at most {MOST_CPU_DEVICES})"
    elif devices > MeshConfig.cpu_devices:
        fix += f" (on a CPU with mesh.cpu_devices={devices})"
    return fix


def key(path: str) -> str | None:
    """Returns the fix for a key that does not exist, if its name is known in the field.

    Args:
      path: the dotted key, as typed.

    Example:
      >>> key("optimizer.lr"), key("seed")
      ('did you mean optimizer.learning_rate?', 'did you mean trainer.seed?')
    """
    name = path.rpartition(".")[2]
    ours = _KEYS.get(name.lower().replace("-", "_"))
    if ours is None or ours == path or ours.startswith(f"{path}."):  # the key itself, or the group that it is in
        return None
    return f"did you mean {ours}?"
