"""What of the options of `runner.model.gpt` can't work, told from the config alone. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.config.schema import ModelConfig
from runner.config.schema_data import DatasetConfig
from runner.data import checks_text
from runner.errors import invalid

TARGET = "runner.model.gpt.build"
CHOICES = {
    "positions": ("learned", "rotary"),
    "norm": ("layer", "rms"),
    "activation": ("gelu", "swiglu"),
    "remat": ("none", "full", "dots_saveable", "dots_with_no_batch_dims_saveable"),
}
_ON_JAX = {"fused_head": (None, False), "scan": (None, False), "remat": ("none",)}  # what other engines take

# Blocks from which on `scan: null` computes them by a scan. XLA compiles blocks one by one where they are not scanned:
# a plan of 48 takes 40 CPU seconds and 1.4 GB, on eight devices twice that; scanned 5 and 0.4 GB, however deep. Of few
# blocks the saving is small, a step is 5% slower, and the paths of their variables are those of other engines.
DEEP = 32


class Problem(NamedTuple):
    """An option that can't work, in the words of a refusal."""

    name: str
    value: object
    allowed: str
    fix: str


def problem(options: Mapping[str, Any], *, on_jax: bool) -> Problem | None:
    """Returns the first option that can't work; None where all may.

    Args:
      options: all of the builder's.
      on_jax: Keras runs on JAX.
    """
    for name, choices in CHOICES.items():
        if options[name] not in choices:
            return Problem(name, options[name], f"one of {', '.join(choices)}", f"set model.{name}={choices[0]}")
    for name, plain in _ON_JAX.items():
        if not on_jax and options[name] not in plain:
            return Problem(name, options[name], "it needs Keras on JAX", "leave it out, or set engine=jax")
    for name in ("dim", "depth", "heads", "key_value_heads", "feedforward", "max_length"):
        if options[name] is not None and options[name] < 1:
            return Problem(name, options[name], "at least 1", f"set model.{name} to a size")
    for name, usual in (("wavelength", 10000.0), ("epsilon", 1e-5)):
        if not options[name] > 0:
            return Problem(name, options[name], "above 0", f"set model.{name}={usual}")
    if not 0 <= options["dropout"] < 1:
        return Problem("dropout", options["dropout"], "from 0 to below 1", "set model.dropout=0.1")
    return _of_heads(options["dim"], options["heads"], options["key_value_heads"], options["positions"])


def _of_heads(dim: int, heads: int, key_value_heads: int | None, positions: str) -> Problem | None:
    if dim % heads:
        of = 2 * heads if positions == "rotary" else heads
        return Problem("heads", heads, f"a divisor of model.dim={dim}", f"set model.dim={of * -(-dim // of)}")
    if key_value_heads is not None and heads % key_value_heads:
        allowed = f"a divisor of model.heads={heads}"
        return Problem("key_value_heads", key_value_heads, allowed, "leave it out, or set it to one")
    if positions == "rotary" and dim // heads % 2:
        allowed = f"an even model.dim / model.heads, here {dim // heads}: numbers turn in pairs"
        even = 2 * heads * -(-dim // (2 * heads))
        return Problem("positions", positions, allowed, f"set model.dim={even}, or model.positions=learned")
    return None


def scans(scan: bool | None, depth: int, *, on_jax: bool) -> bool:
    """Returns whether the blocks are computed by a scan, as `scan` says, or by their number where it is None."""
    return on_jax and depth >= DEEP if scan is None else scan


def check(config: ModelConfig, key: str = "engine", *, on_jax: bool) -> None:
    """Checks a config of this builder; another one's passes.

    Args:
      config: whose options have the types that the builder takes.
      key: that names the engine.
      on_jax: Keras runs on JAX.

    Raises:
      ConfigError: names the option.
    """
    sizes = ("dim", "depth", "heads", "key_value_heads", "feedforward", "max_length")
    names = (*sizes, "wavelength", "epsilon", "dropout", *_ON_JAX, *CHOICES)
    if config.target != TARGET or any(name not in config.options for name in names):
        return
    found = problem(config.options, on_jax=on_jax)
    if found is not None:
        fix = found.fix.replace("set engine=jax", f"set {key}=jax")
        raise invalid(f"model.{found.name}", found.value, problem=found.allowed, fix=fix)


def check_against(config: ModelConfig, *, on_jax: bool, other_on_jax: bool) -> None:
    """Checks that two engines that are compared give a deep model the same paths: one may scan it, the other not.

    Args:
      config: the model's, checked.
      on_jax: Keras runs on JAX in the engine that trains.
      other_on_jax: and in the one that is compared with it.

    Raises:
      ConfigError: one of them scans by default.
    """
    is_left_to_engine = config.target == TARGET and config.options.get("scan") is None
    is_deep = int(config.options.get("depth") or 0) >= DEEP
    if is_left_to_engine and is_deep and on_jax != other_on_jax:
        raise invalid(
            "model.scan",
            None,
            problem=f"engine=jax scans {DEEP} blocks or more by default and the other engine can't, so the paths of "
            "their variables would differ",
            fix="set model.scan=false",
        )


def check_rows(config: ModelConfig, dataset: DatasetConfig) -> None:
    """Checks that a text's rows have no more tokens than this builder's model has places; another builder's pass.

    Raises:
      ConfigError: they have.
    """
    most = config.options.get("max_length") if config.target == TARGET else None
    length = dataset.sequence_length or checks_text.LENGTH
    if isinstance(most, int) and checks_text.is_text(dataset) and length > most:
        allowed = f"at least dataset.sequence_length={length}, the tokens of a row"
        raise invalid("model.max_length", most, problem=allowed, fix=f"set model.max_length={length}, or leave it out")
