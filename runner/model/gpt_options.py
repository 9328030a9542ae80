"""Checks of the options of `runner.model.gpt` that need the config only. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.fields import Constraint
from runner.config.schema import ModelConfig
from runner.config.schema_data import LENGTH, DatasetConfig
from runner.config.values import check_value
from runner.data import registry
from runner.errors import invalid

TARGET = "runner.model.gpt.build"

# The value of `remat` that keeps the activations that `saved` and `offloaded` name.
NAMES = "names"
# The activations of a block that `saved` and `offloaded` may name: its input (B, T, D), the projected queries, keys
# and values (B, T, heads, K), the attended values (B, T, H, K), the attention's output (B, T, D), and the hidden units
# before the activation function (B, T, F); `gate` exists with the activations of `GATED` only.
ACTIVATIONS = ("input", "query", "key", "value", "attended", "attention_output", "gate", "up")

_NAME_LISTS = ("saved", "offloaded")

# Default of `experts_per_token`.
_PER_TOKEN = 2

# Activations of a feed-forward that has a gate (Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202).
GATED = ("swiglu", "geglu")

# Gated feed-forwards have three kernels instead of two. Llama (arXiv:2302.13971) keeps their parameters equal with 2/3
# of the usual 4 * dim hidden units, rounded up so that many mesh sizes and tile sizes divide them.
_GATED_UNITS_PER_DIM = (8, 3)
_GATED_MULTIPLE = 64

_SIZE = Constraint(at_least=1)
CONSTRAINTS: Mapping[str, Constraint] = {
    "positions": Constraint(choices=("learned", "rotary")),
    "norm": Constraint(choices=("layer", "rms")),
    "activation": Constraint(choices=("gelu", "swiglu", "geglu")),
    "remat": Constraint(choices=("none", "full", NAMES, "dots_saveable", "dots_with_no_batch_dims_saveable")),
    "dim": _SIZE,
    "depth": _SIZE,
    "heads": _SIZE,
    "key_value_heads": _SIZE,
    "head_dim": _SIZE,
    "feedforward": _SIZE,
    "max_length": _SIZE,
    "wavelength": Constraint(above=0.0, example=10000.0),
    "epsilon": Constraint(above=0.0, example=1e-5),
    "dropout": Constraint(at_least=0.0, below=1.0, example=0.1),
    "experts": Constraint(at_least=2),
    # The weight of a single expert is 1 whatever the router says, so the router would learn nothing.
    "experts_per_token": Constraint(at_least=2),
    "router_loss": Constraint(above=0.0, example=0.02),
}

# Options that need Keras on JAX -> the values that need nothing.
_NEEDS_JAX: Mapping[str, tuple[object, ...]] = {"fused_head": (None, False), "scan": (None, False), "remat": ("none",)}

# The number of blocks from which on `scan: null` computes them by a scan. XLA compiles unscanned blocks one by one: a
# plan of 48 takes 40 CPU seconds and 1.4 GB, on eight devices twice that; scanned 5 s and 0.4 GB at any depth. With
# few blocks the saving is small, a step is 5% slower, and variable paths differ from those of other engines.
DEEP = 32


def check_options(options: Mapping[str, Any], *, on_jax: bool) -> None:
    """Checks the options of the builder. Raises ConfigError for the first problem."""
    for name, constraint in CONSTRAINTS.items():
        check_value(f"model.{name}", options[name], constraint)
    for name, values in _NEEDS_JAX.items():
        if not on_jax and options[name] not in values:
            fix = f"remove model.{name}, or set engine=jax"
            raise invalid(f"model.{name}", options[name], problem="needs Keras on JAX", fix=fix)
    _check_heads(options)
    _check_names(options)
    _check_effects(options)
    _check_experts(options)


def _check_effects(options: Mapping[str, Any]) -> None:
    """Checks that no option is set that others leave without effect."""
    for name, is_idle, needed in (
        ("router_loss", options["experts"] is None, "model.experts=8"),
        ("experts_per_token", options["experts"] is None, "model.experts=8"),
        ("saved", options["remat"] != NAMES, f"model.remat={NAMES}"),
        ("offloaded", options["remat"] != NAMES, f"model.remat={NAMES}"),
    ):
        value = options[name]
        is_set = value != _PER_TOKEN if name == "experts_per_token" else bool(value)
        if is_idle and is_set:
            problem = f"has no effect without {needed.partition('=')[0]}"
            raise invalid(f"model.{name}", value, problem=problem, fix=f"set {needed}, or remove model.{name}")


def _check_experts(options: Mapping[str, Any]) -> None:
    experts = options["experts"]
    per_token = options["experts_per_token"]
    if experts is None:
        return
    if per_token > experts:
        problem = f"must be at most model.experts={experts}"
        raise invalid("model.experts_per_token", per_token, problem=problem, fix=f"set it to {experts} or less")
    if options["activation"] not in GATED or options["bias"]:
        fix = "set model.activation=swiglu model.bias=false"
        raise invalid("model.experts", experts, problem="experts have a gate and no biases", fix=fix)


def _check_names(options: Mapping[str, Any]) -> None:
    for name in _NAME_LISTS:
        for activation in options[name]:
            check_value(f"model.{name}", activation, Constraint(choices=ACTIVATIONS))
        if "gate" in options[name] and options["activation"] not in GATED:
            problem = f"model.activation={options['activation']} has no gate"
            raise invalid(f"model.{name}", list(options[name]), problem=problem, fix="remove gate")
    if options["remat"] == NAMES and not options["saved"] and not options["offloaded"]:
        fix = "set model.saved=[attended], or model.remat=full"
        raise invalid("model.remat", NAMES, problem="names no activation to keep", fix=fix)
    twice = sorted(set(options["saved"]) & set(options["offloaded"]))
    if twice:
        problem = f"model.saved has {', '.join(twice)} too"
        fix = f"remove {twice[0]} from one of them"
        raise invalid("model.offloaded", list(options["offloaded"]), problem=problem, fix=fix)


def check_device(config: ModelConfig, device: str) -> None:
    """Checks that the mesh's devices have host memory beside their own; other builders pass."""
    offloaded = config.options.get("offloaded")
    if config.target == TARGET and offloaded and device == "cpu":
        problem = "on a CPU, device memory is host memory, so JAX offloads nothing"
        raise invalid("model.offloaded", list(offloaded), problem=problem, fix="use model.saved, or mesh.device=gpu")


def default_feedforward(dim: int, activation: str) -> int:
    """Returns the number of hidden units of a block that its width implies."""
    if activation not in GATED:
        return 4 * dim
    numerator, denominator = _GATED_UNITS_PER_DIM
    return _round_up(-(-numerator * dim // denominator), _GATED_MULTIPLE)


def recomputed_share(options: Mapping[str, Any]) -> float:
    """Returns the share of a block's forward products that a step computes a second time, by multiplications.

    The product that ends a block is never repeated, because no gradient needs its result. The head is in no block, and
    is not repeated either. Not counted here is attention, whose own products are repeated as soon as any is.
    """
    remat = options.get("remat")
    if remat not in ("full", NAMES):
        return 0.0
    dim = int(options["dim"])
    heads = int(options["heads"])
    head = int(options.get("head_dim") or dim // heads)
    groups = head * int(options["key_value_heads"] or heads)
    hidden = int(options["feedforward"] or default_feedforward(dim, options["activation"]))
    # Every expert computes every token. The products of the router are too few to count.
    hidden *= int(options.get("experts") or 1)
    # All products of a block have the model width as one dim, and these as the other.
    widths = {"query": heads * head, "key": groups, "value": groups, "attention_output": heads * head, "up": hidden}
    if options["activation"] in GATED:
        widths["gate"] = hidden
    kept = set()
    if remat == NAMES:
        kept = {*options["saved"], *options["offloaded"]}
    repeated = sum(width for name, width in widths.items() if name not in kept)
    return repeated / (sum(widths.values()) + hidden)


def used_experts(model: ModelConfig) -> float:
    """Returns the share of its experts that a token uses; of another builder, or without experts, it is 1."""
    experts = model.options.get("experts")
    if model.target != TARGET or experts is None:
        return 1.0
    return float(model.options.get("experts_per_token", _PER_TOKEN) / experts)


def _check_heads(options: Mapping[str, Any]) -> None:
    dim = options["dim"]
    heads = options["heads"]
    head_dim = options["head_dim"]
    is_rotary = options["positions"] == "rotary"
    if head_dim is None and dim % heads:
        # RoPE needs an even size per head too.
        fix = f"set model.dim={_round_up(dim, heads * (1 + is_rotary))}"
        raise invalid("model.heads", heads, problem=f"must divide model.dim={dim}", fix=fix)
    if options["key_value_heads"] is not None and heads % options["key_value_heads"]:
        problem = f"must divide model.heads={heads}"
        fix = "remove it, or set it to a divisor"
        raise invalid("model.key_value_heads", options["key_value_heads"], problem=problem, fix=fix)
    if is_rotary and (head_dim or dim // heads) % 2:
        problem = f"needs an even size per head, but it is {head_dim or dim // heads}: RoPE rotates pairs"
        fix = f"set model.dim={_round_up(dim, 2 * heads)}"
        if head_dim is not None:
            fix = f"set model.head_dim={head_dim + 1}"
        raise invalid("model.positions", "rotary", problem=problem, fix=f"{fix}, or model.positions=learned")


def _round_up(size: int, divisor: int) -> int:
    return divisor * -(-size // divisor)


def scans(scan: bool | None, depth: int, *, on_jax: bool) -> bool:
    """Returns whether the blocks are computed by a scan. If `scan` is None, their number decides."""
    if scan is not None:
        return scan
    return on_jax and depth >= DEEP


def check(config: ModelConfig, *, on_jax: bool) -> None:
    """Checks the config of this builder; those of other builders pass. Raises ConfigError for the first problem."""
    # Without all of them the builder checks the options itself, when it is called.
    has_all_options = {*CONSTRAINTS, *_NEEDS_JAX, *_NAME_LISTS} <= config.options.keys()
    if config.target == TARGET and has_all_options:
        check_options(config.options, on_jax=on_jax)


def check_rows(config: ModelConfig, dataset: DatasetConfig) -> None:
    """Checks that the rows of a text have no more tokens than there are positions, and that no loss needs all rows.

    Other builders pass.
    """
    if config.target != TARGET:
        return
    if config.options.get("router_loss") is not None and dataset.remainder == "pad":
        problem = "padding would count in model.router_loss"
        raise invalid("dataset.remainder", "pad", problem=problem, fix="set dataset.remainder=drop")
    max_length = config.options.get("max_length")
    length = dataset.sequence_length or LENGTH
    if isinstance(max_length, int) and registry.is_text(dataset) and length > max_length:
        problem = f"must be at least dataset.sequence_length={length}, the tokens of a row"
        fix = f"set model.max_length={length}, or remove it"
        raise invalid("model.max_length", max_length, problem=problem, fix=fix)
