"""Token-by-token decoding of KerasHub's causal language models, with their own key/value cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.host.late import late
from runner.model.portable import Tensor
from runner.model.transformer import CachedTokens

if TYPE_CHECKING:
    from runner.model.hub import private
else:
    private = late("runner.model.hub.private")

# Parameters of `call_with_cache` of models of text alone. Others take images, sound or masks of the prompts.
_PARAMETERS = ["token_ids", "cache", "cache_update_index"]
# Phi3's position embedding whose frequencies depend on the length of the sequence that is computed: all slots in one
# call have the last slot's frequencies, and token by token each has those of its own position.
_DEPENDS_ON_LENGTH = "su"


class HubDecoder:
    """A causal language model of KerasHub, whose tokens are at the position of their slot.

    So all rows of a call must have prompts of one length.

    Attributes:
      positions: None: a row has no more slots than positions.
      pads_prompts: False: the prompts of a call have one length.
      rows_dim: dim of the rows in a cache (B, layers, 2, S, heads, width).
    """

    positions: int | None = None
    pads_prompts = False
    rows_dim = -6

    def __init__(self, task_model: Any) -> None:
        """Takes a CausalLM."""
        self._task_model = task_model

    def seeded(self, tokens_bs: Tensor) -> list[Tensor]:
        """Returns the caches after tokens that fill every slot."""
        return [private.seeded_cache(self._task_model, tokens_bs)]

    def __call__(self, tokens_bt: Tensor, caches: Sequence[Tensor], new: CachedTokens) -> tuple[Any, list[Tensor]]:
        """Returns the logits (B, T, V) of new tokens, and the caches with them.

        Args:
          tokens_bt: int32.
          caches: of `seeded`.
          new: where the tokens go; their slot is their position, and they attend to all earlier slots.
        """
        (cache,) = caches
        logits, _, cache = self._task_model.call_with_cache(tokens_bt, cache, new.slot)
        return logits, [cache]


def of(model: Any) -> HubDecoder | None:
    """Returns the decoder of a model of `runner.model.keras_hub`.

    Returns None if its class has no plain cache, or if the cache gives other numbers than the whole sequence does.
    """
    task_model = model.layers[-1] if model.layers else None
    call = getattr(task_model, "call_with_cache", None)
    if call is None or not hasattr(task_model, "_build_cache"):
        return None
    if list(inspect.signature(call).parameters) != _PARAMETERS:
        return None
    backbone = getattr(task_model, "backbone", None)
    if getattr(backbone, "rope_scaling_type", None) == _DEPENDS_ON_LENGTH:
        return None
    return HubDecoder(task_model)
