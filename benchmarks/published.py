"""Training runs that others have published, as configs of the runner.

A row of the CSV file has the columns of `COLUMNS`. Nothing here knows a single row: architectures follow from the
family that the model's name says and from the number of parameters, meshes from the words for parallel axes.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

COLUMNS = [
    "source",
    "url_or_path",
    "model",
    "params",
    "layers",
    "dim",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq",
    "global_batch",
    "per_device_batch",
    "dtype",
    "optimizer",
    "remat",
    "mesh_parallelism",
    "hardware",
    "devices",
    "memory_gib_per_device",
    "tokens_per_s_per_device",
    "step_s",
    "mfu_pct",
    "notes",
]
# Columns without which a row describes no program.
_NEEDED = ("layers", "dim", "heads", "vocab", "seq", "per_device_batch", "devices")
# Relative difference of parameters up to which an architecture counts as that of the row.
_PARAMETERS_AGREE = 0.02

# Card of a row, by words of its column `hardware` -> (option of `hardware`, usual memory in GB). The first match wins.
_CARDS = (
    (r"h200", "h200", 141),
    (r"h100", "h100", 80),
    (r"b200", "b200", 180),
    (r"a100.*40 ?gb", "a100_40g", 40),
    (r"a100", "a100_80g", 80),
    (r"\bl4\b", "l4", 24),
    (r"v5e|v5 ?lite", "v5e", 16),
    (r"v6e|trillium", "v6e", 32),
    (r"v5p", "v5p", 95),
    (r"\bv4\b", "v4", 32),
)
# Share of a GPU's memory that CUDA gives to programs: 79.1 GiB of an H100 of 80 GiB.
_USABLE = 0.989
# Parallel axes in words: "FSDP2 8", "FULL_SHARD 64", "TP 4".
_AXIS = re.compile(
    r"\b(FSDP2?(?:[ _-]transpose)?|FULL_SHARD|SHARD_GRAD_OP|HYBRID_SHARD|HSDP|DP_SHARD|DP_REPLICATE|ZERO-?3"
    r"|TP|PP|CP|EP|DP)\s*=?\s*(\d+)",
    re.IGNORECASE,
)
# MaxText's `fsdp_transpose` shards weights over another dim, and the examples too.
_FSDP_NAMES = re.compile(r"FSDP|FULL_SHARD|SHARD_GRAD_OP|HYBRID_SHARD|HSDP|DP_SHARD|ZERO-?3", re.IGNORECASE)
# Data parallelism that shards the optimizer state alone, which no layout does.
_ZERO_1 = re.compile(r"zero[ _-]?(stage[ _-]?)?1\b|distributed (adam|optimizer)", re.IGNORECASE)

# Products of a block with weights, but for the last one, whose result no gradient needs.
_PRODUCTS = ("query", "key", "value", "attention_output", "up")
# Devices of a node of GPUs.
_NODE = 8
_WINDOW = re.compile(r"\bwindow(?: of| size)? (\d+)", re.IGNORECASE)
_BFLOAT16_STATE = re.compile(r"\b(bf16|bfloat16) (params|parameters|weights|moments|state|optimizer)", re.IGNORECASE)

# Activation checkpointing of a row -> options of gpt, and whether it is the same set of kept arrays. The first pattern
# that matches wins.
_REMAT: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    (r"^(none|no)?$", ("model.remat=none",), True),
    (r"^full", ("model.remat=full",), True),
    (r"^qkv_proj_offloaded", ("model.remat=names", "model.offloaded=[query,key,value]"), True),
    (r"^save_qkv_proj", ("model.remat=names", "model.saved=[query,key,value]"), True),
    (r"^minimal_offloaded", ("model.remat=names", f"model.offloaded=[{','.join(_PRODUCTS)}]"), True),
    (r"^minimal", ("model.remat=dots_with_no_batch_dims_saveable",), True),
    # torchtitan keeps attention and every second product, and recomputes the others. The last product of a block is
    # kept too, and has no name here.
    (r"^selective", ("model.remat=names", "model.saved=[query,value,attended,gate]"), True),
    # Others keep a few of a block's products: nearest is none of them.
    (r".", ("model.remat=full",), False),
)


# Bytes per logit that PyTorch's loss holds beyond those of XLA's, see `Published.framework_bytes`.
_EAGER_LOSS_BYTES = 14 - 4
_BFLOAT16 = 2


class UnmappedError(ValueError):
    """A row for which there is no config, with the reason."""


@dataclass(frozen=True)
class Published:
    """One published run.

    Attributes:
      row: the cells by column.
      card: option of the group `hardware`.
      memory_gb: of the card, as the row says it.
      overrides: of the config, without `plan.compiler`.
      axes: size by kind of parallelism: `fsdp`, `tp`, `cp`, `dp`.
      accumulates: microbatches of a step.
      microbatch: examples of a microbatch on all planned devices.
      is_alike: whether activation checkpointing and products are those of the run.
      has_time: whether the plan's step time is that of the run's program.
      ran_out: the run ended out of memory.
    """

    row: Mapping[str, str]
    card: str
    memory_gb: float
    overrides: tuple[str, ...]
    axes: Mapping[str, int]
    accumulates: int
    microbatch: int
    is_alike: bool
    has_time: bool
    ran_out: bool

    @property
    def source(self) -> str:
        """Returns the first words of the source: tables of one source are one source."""
        return re.split(r"[ ,]", self.row["source"])[0].lower()

    @property
    def tokens_per_device(self) -> float:
        """Returns the tokens of a step per device."""
        cp_tp = self.axes["cp"] * self.axes["tp"]
        rows_per_device = self.microbatch / (self.axes["fsdp"] * self.axes["dp"] * cp_tp)
        return self.accumulates * rows_per_device * float(self.row["seq"])

    @property
    def optimizer_shards(self) -> int:
        """Returns over how many replicas of the weights the run shards their optimizer state: ZeRO-1."""
        words = f"{self.row['mesh_parallelism']} {self.row['optimizer']}"
        return self.axes["dp"] if _ZERO_1.search(words) else 1

    @property
    def framework_bytes(self) -> float:
        """Returns what the run's framework holds per device beyond the runner, in arrays that are known.

        PyTorch's cross-entropy of bfloat16 logits holds, beside them, a copy in float32, its log-softmax, and their
        gradient: 14 bytes per logit. XLA holds the logits and their gradient in bfloat16, 4 bytes. Selective
        checkpointing in torchtitan keeps the output of each block's last product, which no gradient needs.
        """
        if _is_jax(self.row):
            return 0.0
        tokens = self.tokens_per_device / self.accumulates
        held = 0.0
        if "model.fused_head=false" in self.overrides:
            held += _EAGER_LOSS_BYTES * tokens * float(self.row["vocab"])
        if "model.remat=names" in self.overrides:
            held += _BFLOAT16 * tokens * float(self.row["dim"]) * float(self.row["layers"])
        return held

    @property
    def memory_gib(self) -> float | None:
        """Returns the published memory per device."""
        return _number(self.row["memory_gib_per_device"])

    def step_seconds(self, model_flops: float, peak_flops: float) -> float | None:
        """Returns the published time of a step: stated, or from tokens per second, or from the MFU.

        Args:
          model_flops: of a step on one device, without recomputation.
          peak_flops: of the device.
        """
        stated = _number(self.row["step_s"])
        if stated:
            return stated
        rate = _number(self.row["tokens_per_s_per_device"])
        if rate:
            seconds = self.tokens_per_device / rate
            # No device computes faster than its peak: the rate is that of a node.
            is_of_node = model_flops > seconds * peak_flops
            return seconds * _NODE if is_of_node else seconds
        mfu = _number(self.row["mfu_pct"])
        if mfu:
            return model_flops / (mfu / 100 * peak_flops)
        return None


@dataclass(frozen=True)
class _Architecture:
    """Options of `model=gpt` that the columns leave open."""

    options: Mapping[str, object] = field(default_factory=dict)
    parameters: int = 0


def read(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file.

    Raises:
      ValueError: it lacks a column.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}")
        return [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]


def mapped(row: Mapping[str, str]) -> Published:
    """Returns the config of a row.

    Raises:
      UnmappedError: the row lacks sizes, or names what the runner does not do.
    """
    for column in _NEEDED:
        if not _number(row[column]):
            raise UnmappedError(f"the row has no {column}")
    card, memory_gb, hardware = _hardware(row)
    axes = _axes(row)
    architecture = _architecture(row)
    remat, is_alike = _remat(row["remat"])
    batch, accumulates = _batches(row, axes)
    batch *= axes["dp"]
    is_8_bit = re.search(r"fp8|float8|int8", row["dtype"], re.IGNORECASE) is not None
    options = {name: value for name, value in architecture.options.items() if value is not None}
    overrides = [
        "engine=jax",
        f"engine.precision={_precision(row)}",
        "model=gpt",
        *(f"model.{name}={_text(value)}" for name, value in options.items()),
        *remat,
        f"model.scan={_text(_is_scanned(row))}",
        "task=language_model",
        f"task.vocabulary={row['vocab']}",
        "task.sample.prompt=null",
        "dataset=synthetic",
        f"dataset.length={row['seq']}",
        f"dataset.batch_size={batch}",
        "trainer.steps=10",
        f"trainer.accumulate_steps={accumulates}",
        *_optimizer(row),
        *hardware,
        *_mesh(axes, is_scanned=_is_scanned(row)),
    ]
    # Logits of PyTorch's cross-entropy are whole, those of others too, unless a row says that they are chunked.
    window = _WINDOW.search(row["notes"])
    if window and int(window[1]) < float(row["seq"]):
        raise UnmappedError("gpt has no sliding windows")
    if "fused loss" not in row["notes"] and "logits chunked" not in row["notes"]:
        overrides.append("model.fused_head=false")
    return Published(
        row=row,
        card=card,
        memory_gb=memory_gb,
        overrides=tuple(overrides),
        axes=axes,
        accumulates=accumulates,
        microbatch=batch // accumulates,
        is_alike=is_alike,
        has_time=not is_8_bit and "lora" not in row["optimizer"].lower(),
        ran_out=_ran_out(row),
    )


def _is_jax(row: Mapping[str, str]) -> bool:
    """Returns whether XLA compiled the program; else PyTorch ran it."""
    return re.search(r"maxtext|levanter|\bjax\b|t5x|pax|easylm", row["source"].lower()) is not None


def _is_scanned(row: Mapping[str, str]) -> bool:
    """Returns whether the blocks are a loop of the program: in JAX unless a row says otherwise, never in PyTorch."""
    return _is_jax(row) and "scan off" not in row["notes"].lower()


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _ran_out(row: Mapping[str, str]) -> bool:
    words = " ".join((row["memory_gib_per_device"], row["tokens_per_s_per_device"], row["mfu_pct"], row["notes"]))
    return re.search(r"\boom\b|out of memory|does not fit", words, re.IGNORECASE) is not None


def _precision(row: Mapping[str, str]) -> str:
    return "float32" if re.fullmatch(r"(fp32|float32|tf32)", row["dtype"].lower()) else "bfloat16"


def _hardware(row: Mapping[str, str]) -> tuple[str, float, list[str]]:
    """Returns the option of the group hardware, memory in GB, and overrides of what the row says otherwise."""
    words = row["hardware"].lower()
    cards = [(option, usual) for pattern, option, usual in _CARDS if re.search(pattern, words)]
    if not cards:
        raise UnmappedError(f"no figures of {row['hardware']!r}")
    option, usual = cards[0]
    overrides = [f"hardware={option}"]
    memory = float(usual)
    stated = re.search(r"(\d+) ?gb(?!/s|it)", words)
    if stated and float(stated[1]) != usual:
        memory = float(stated[1])
        overrides.append(f"hardware.memory_gib={memory * _USABLE:.1f}")
    bandwidth = re.search(r"([\d.]+) ?tb/s", words)
    if bandwidth:
        overrides.append(f"hardware.memory_gb_s={1000 * float(bandwidth[1]):g}")
    return option, memory, overrides


def _axes(row: Mapping[str, str]) -> dict[str, int]:
    """Returns the sizes of the parallel axes: fsdp, tp, cp and dp, whose product is the number of devices."""
    sizes = {"fsdp": 1, "tp": 1, "cp": 1, "dp": 1}
    named = set()
    for name, text in _AXIS.findall(row["mesh_parallelism"]):
        size = int(text)
        key = "fsdp" if _FSDP_NAMES.match(name) else name.lower().removesuffix("_replicate")
        if key in ("pp", "ep"):
            if size > 1:
                raise UnmappedError(f"{name.upper()} {size}: no such parallelism here")
            continue
        sizes[key] *= size
        named.add(key)
    devices = int(float(row["devices"]))
    known = math.prod(sizes.values())
    if devices % known:
        raise UnmappedError(f"{row['mesh_parallelism']!r} does not divide {devices} devices")
    if known < devices:
        # Data parallelism is often left unsaid.
        sizes["dp"] *= devices // known
    return sizes


def _mesh(axes: Mapping[str, int], *, is_scanned: bool) -> list[str]:
    """Returns mesh and layout: replicas of the weights, each of which several devices share."""
    batch, model, sequence = axes["fsdp"], axes["tp"], axes["cp"]
    names = {"batch": batch}
    if axes.get("dp", 1) > 1:
        names = {"replica": axes["dp"], **names}
    if sequence > 1:
        names["sequence"] = sequence
    if model > 1:
        names["model"] = model
    text = ",".join(f"{name}:{size}" for name, size in names.items())
    overrides = [f"mesh.axes={{{text}}}"]
    if sequence > 1:
        overrides += ["layout=sequence", f"layout.rules={_rules_of_context_parallelism(batch, model, is_scanned)}"]
    elif model > 1:
        overrides.append("layout=fsdp_megatron")
    else:
        overrides.append("layout=fsdp")
    return overrides


def _rules_of_context_parallelism(batch: int, model: int, is_scanned: bool) -> str:
    """Returns rules that shard the weights over the axes of the examples and of the tokens, as FSDP does there."""
    if model > 1:
        raise UnmappedError("context and tensor parallelism together")
    if batch == 1:
        return "[{match: '.*', shard: sequence, min_elements: 1024}]"
    stack = ""
    if is_scanned:
        stack = "null, "
    rules = []
    for path, spec in (
        (".*attention/(query|key|value)/kernel", f"[{stack}batch, sequence, null]"),
        (".*attention/output/kernel", f"[{stack}sequence, null, batch]"),
        (".*feedforward/(gate|up|down)/kernel", f"[{stack}batch, sequence]"),
        ("token_embedding/embeddings", "[batch, sequence]"),
        ("head/kernel", "[batch, sequence]"),
    ):
        rules.append(f"{{match: '{path}', spec: {spec}, optional: true}}")
    return f"[{', '.join(rules)}]"


def _batches(row: Mapping[str, str], axes: Mapping[str, int]) -> tuple[int, int]:
    """Returns the batch size of one replica of the weights, and its number of microbatches."""
    microbatch = float(row["per_device_batch"]) * axes["fsdp"]
    # Rows count the examples of a group of devices that share them, or of each device.
    global_batch = _number(row["global_batch"])
    per_device = float(row["per_device_batch"])
    shared = axes["tp"] * axes["cp"]
    if global_batch is None:
        return round(microbatch), 1
    parts = axes["fsdp"] * axes["dp"]
    accumulates = global_batch / (per_device * parts)
    if accumulates < 1 or (shared > 1 and math.isclose(global_batch, per_device * parts * shared)):
        microbatch = global_batch / axes["dp"]
        accumulates = 1
    count = max(round(accumulates), 1)
    microbatch = max(microbatch, axes["fsdp"])
    return round(microbatch) * count, count


def _remat(words: str) -> tuple[tuple[str, ...], bool]:
    for pattern, options, is_alike in _REMAT:
        if re.search(pattern, words.lower()):
            # Nothing said is not the same as none.
            return options, is_alike and bool(words)
    raise AssertionError(words)


def _optimizer(row: Mapping[str, str]) -> list[str]:
    words = row["optimizer"].lower()
    if "lora" in words:
        raise UnmappedError("gpt has no LoRA")
    state = []
    if _BFLOAT16_STATE.search(f"{words} {row['dtype']}") and _precision(row) == "bfloat16":
        state.append("engine.state=bfloat16")
    for name in ("adamw", "adam", "sgd", "lion", "adafactor"):
        if name in words:
            return [f"optimizer={'adamw' if name == 'adam' else name}", *state]
    return ["optimizer=adamw", *state]


def _architecture(row: Mapping[str, str]) -> _Architecture:
    """Returns the options with which gpt has the parameters of the row.

    Of those that the family allows, the nearest; a row without a number of parameters has the family's usual ones.

    Raises:
      UnmappedError: no choice has so many.
    """
    parameters = _number(row["params"])
    choices = list(_choices(row))
    if not parameters:
        return choices[0]
    best = min(choices, key=lambda choice: abs(choice.parameters - parameters))
    if abs(best.parameters - parameters) > _PARAMETERS_AGREE * parameters:
        raise UnmappedError(f"{row['model']} has {parameters:,.0f} parameters, the nearest gpt {best.parameters:,}")
    return best


def _choices(row: Mapping[str, str]) -> Iterator[_Architecture]:
    name = row["model"].lower()
    if re.search(r"mixtral|moe|\dx\d+b|deepseek|grok", name):
        raise UnmappedError("gpt computes every expert for every token, and published runs the chosen ones only")
    dim = int(float(row["dim"]))
    heads = int(float(row["heads"]))
    is_older = re.search(r"\bmpt|gpt-?[123j]|gpt_|opt-|megatron|bloom|nemotron", name) is not None
    activations: Sequence[str] = ("swiglu", "gelu")
    if is_older:
        activations = ("gelu", "swiglu")
    elif "gemma" in name:
        activations = ("geglu",)
    widths: list[int | None] = [128, 256, 64]
    if dim % heads == 0:
        widths.insert(0, None)
    ties = (True, False) if is_older or "gemma" in name else (False, True)
    for width, activation, tied in product(widths, activations, ties):
        options: dict[str, object] = {
            "dim": dim,
            "depth": int(float(row["layers"])),
            "heads": heads,
            "key_value_heads": int(_number(row["kv_heads"]) or heads),
            "head_dim": width,
            "feedforward": int(_number(row["ffn"]) or 4 * dim),
            "positions": "learned" if is_older else "rotary",
            "norm": "layer" if is_older else "rms",
            "activation": activation,
            "bias": is_older,
            "tied": tied,
        }
        yield _Architecture(options, _parameters(options, int(float(row["vocab"])), int(float(row["seq"]))))


def _parameters(options: Mapping[str, object], vocabulary: int, length: int) -> int:
    """Returns the parameters of a gpt."""
    sizes = {name: value for name, value in options.items() if isinstance(value, int)}
    dim, depth, hidden = sizes["dim"], sizes["depth"], sizes["feedforward"]
    width = sizes.get("head_dim") or dim // sizes["heads"]
    query, key = sizes["heads"] * width, sizes["key_value_heads"] * width
    kernels = 2 if options["activation"] == "gelu" else 3
    block = dim * (2 * query + 2 * key) + kernels * dim * hidden
    norm = dim
    if options["norm"] == "layer":
        norm = 2 * dim
    if options["bias"]:
        block += query + 2 * key + dim + (kernels - 1) * hidden + dim
    total = depth * (block + 2 * norm) + norm + vocabulary * dim
    if not options["tied"]:
        total += vocabulary * dim
    if options["positions"] == "learned":
        total += length * dim
    return total
