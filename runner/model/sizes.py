"""Options that all blocks of one transformer share, and their activation checkpointing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.model.gpt_options import GATED, NAMES
from runner.model.portable import Tensor

_OFF = "none"
_FULL = "full"


@dataclass(frozen=True)
class Remat:
    """Which activations of a block are kept for the backward pass; all others are computed again, with Keras on JAX.

    Attributes:
      policy: `none` (all are kept), `full` (none is kept), `names`, or a policy of `jax.checkpoint_policies`.
      saved: with `names`, activations that are kept in device memory; see `gpt_options.ACTIVATIONS`.
      offloaded: with `names`, activations that are kept in host memory.
    """

    policy: str = _OFF
    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()

    @property
    def is_off(self) -> bool:
        """Returns whether all activations are kept."""
        return self.policy == _OFF

    def named(self, name: str, x: Tensor) -> Tensor:
        """Returns an activation under a name that `saved` and `offloaded` can have."""
        if self.policy != NAMES:
            return x
        return importlib.import_module("jax.ad_checkpoint").checkpoint_name(x, name)

    def applied(self, function: Callable[..., Any], *, scanned: bool = False) -> Any:
        """Returns a JAX function with activation checkpointing; `scanned`: it is the body of a scan."""
        if self.is_off:
            return function
        # Imported by name: Keras 3 has imported JAX already, but the DTensor engines may run without it.
        jax = importlib.import_module("jax")
        # A new lambda each time: JAX caches the trace of a function, and this one closes over other values each time.
        # XLA can't merge a scan's body with its recomputation, so the barriers against common subexpression
        # elimination, which slow it down, aren't needed there.
        return jax.checkpoint(
            lambda *arguments: function(*arguments),
            policy=self._saveable(jax.checkpoint_policies),
            prevent_cse=not scanned,
        )

    def _saveable(self, policies: Any) -> Any:
        if self.policy == _FULL:
            return None
        if self.policy != NAMES:
            return getattr(policies, self.policy)
        if not self.offloaded:
            return policies.save_only_these_names(*self.saved)
        # On a CPU, JAX 0.10 leaves the offloaded arrays where they are.
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.saved),
            names_which_can_be_offloaded=list(self.offloaded),
            offload_src="device",
            offload_dst="pinned_host",
        )


@dataclass(frozen=True)
class Sizes:
    """Options that all blocks of one transformer share; `conf/model/gpt.yaml` says what those of its names mean.

    Attributes:
      depth: number of blocks. The projections that end a branch are initialized smaller, by the square root of the
        number of branches, so that the residual stream keeps its variance (Radford et al., 2019).
      rotary: RoPE base (theta); None: the blocks add no positions.
    """

    dim: int
    heads: int
    key_value_heads: int
    feedforward: int
    depth: int
    rotary: float | None
    norm: str
    activation: str
    bias: bool
    dropout: float
    epsilon: float
    remat: Remat
    head_dim: int | None = None
    experts: int | None = None
    experts_per_token: int = 2
    router_loss: float | None = None

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.dim // self.heads

    @property
    def is_gated(self) -> bool:
        """Returns whether the feed-forward has a gate."""
        return self.activation in GATED
