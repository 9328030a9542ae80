"""Low-rank adapters of a KerasHub backbone: Hu et al., LoRA (2021), as `Backbone.enable_lora` makes them."""

from __future__ import annotations

from typing import Any

from runner.errors import invalid


def enable_lora(backbone: Any, rank: int) -> None:
    """Adds adapters to the layers that the class names, and lets nothing else of the backbone train.

    KerasHub leaves the biases of those layers trainable; an adapter is the two low-rank kernels alone.

    Args:
      backbone: built, its weights loaded.
      rank: of the adapters.

    Raises:
      ConfigError: no layer of the backbone can have one.
    """
    backbone.enable_lora(rank)
    for variable in backbone.trainable_variables:
        if not variable.name.startswith("lora_"):
            variable.trainable = False
    if not backbone.trainable_variables:
        names = ", ".join(backbone.default_lora_layer_names())
        raise invalid(
            "model.lora_rank",
            rank,
            problem=f"{type(backbone).__name__} has no layer that can have adapters, of those named {names}",
            fix="leave it out, and choose what is trained by model.trainable",
        )
