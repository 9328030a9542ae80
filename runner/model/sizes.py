"""Options that all blocks of one transformer share."""

from __future__ import annotations

from dataclasses import dataclass

from runner.model import windows
from runner.model.gpt_options import GATED
from runner.model.remat import Remat


@dataclass(frozen=True)
class Sizes:
    """Options that all blocks of one transformer share.

    Attributes:
      dim: model width.
      heads: query heads.
      key_value_heads: each serves `heads / key_value_heads` query heads.
      feedforward: hidden units.
      depth: number of blocks. The projections that end a branch are initialized smaller, by the square root of the
        number of branches, so that the residual stream keeps its variance (Radford et al., 2019).
      rotary: RoPE base (theta); None: the blocks add no positions.
      norm: `layer` or `rms`.
      activation: `gelu`: the hidden units are GELU(up); `swiglu` and `geglu`: SiLU or GELU of a gate, times up.
      bias: every projection has a bias.
      dropout: dropout rate of each branch's output.
      epsilon: of the norms.
      remat: activation checkpointing of each block.
      head_dim: width of one head; None: `dim / heads`.
      window: tokens that a token of a local block attends to, itself included; None: no block is local.
      global_every: every so many blocks, one attends to all earlier tokens; None: all blocks are local.
      local_rotary: RoPE base of local blocks; None: `rotary`.
      attention_cap: soft cap of the scores of attention; None: none.
      post_norm: the output of each branch is normalized too, before it is added.
      query_key_norm: each head's queries and keys are normalized, before they are rotated.
      experts: feed-forwards of a block, each gated and without biases; None: there is one.
      experts_per_token: number of them that a token uses.
      router_loss: factor of the load-balancing loss of each block's router; None: there is none.
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
    window: int | None = None
    global_every: int | None = None
    local_rotary: float | None = None
    attention_cap: float | None = None
    post_norm: bool = False
    query_key_norm: bool = False
    experts: int | None = None
    experts_per_token: int = 2
    router_loss: float | None = None

    def is_local(self, index: int) -> bool:
        """Returns whether a block attends to the tokens of a window only."""
        return windows.is_local(index, self.window, self.global_every)

    @property
    def period(self) -> int:
        """Number of blocks after which local and global ones repeat."""
        if self.window is None or self.global_every is None or self.global_every > self.depth:
            return 1
        return self.global_every

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.dim // self.heads

    @property
    def is_gated(self) -> bool:
        """Returns whether the feed-forward has a gate."""
        return self.activation in GATED
