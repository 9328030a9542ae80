"""LoRA fine-tuning of a KerasHub backbone with `Backbone.enable_lora`: Hu et al. (arXiv:2106.09685)."""

from __future__ import annotations

from typing import Any

from runner.errors import invalid


def enable_lora(backbone: Any, rank: int) -> None:
    """Adds low-rank adapters, and freezes the rest of the backbone.

    The backbone's class names the layers that get adapters.

    Args:
      backbone: built.
      rank: the rank of the adapters.

    Raises:
      ConfigError: no layer of the backbone can have adapters.
    """
    backbone.enable_lora(rank)
    # KerasHub leaves the biases of adapted layers trainable. LoRA trains the two low-rank kernels only.
    for variable in backbone.trainable_variables:
        if not variable.name.startswith("lora_"):
            variable.trainable = False
    if not backbone.trainable_variables:
        names = ", ".join(backbone.default_lora_layer_names())
        raise invalid(
            "model.lora_rank",
            rank,
            problem=f"{type(backbone).__name__} has no layer that supports adapters (layers named {names})",
            fix="leave it out, and select trainable variables with model.trainable",
        )
