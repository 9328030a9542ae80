"""Any backbone of KerasHub with the head that the run's task needs: `model=keras_hub model.backbone=GPT2Backbone`.

Engine `jax` alone. A causal language model is KerasHub's own, and so is a classifier; a backbone without one for the
run's task gets a dense head on what it gives. Variables go by KerasHub's own paths.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.data.base import ArraySpec
from runner.host import libraries
from runner.host.late import late
from runner.model import stored
from runner.model.hub import heads, options, presets, tuning
from runner.model.hub import inputs as hub_inputs

if TYPE_CHECKING:
    import keras_hub

    from runner.task.base import OutputSpec
else:
    keras_hub = late("keras_hub")

logger = logging.getLogger(__name__)

# KerasHub loads these only because they are installed, TensorFlow for the preprocessing of text that no run needs.
_HIDDEN = ("tensorflow", "tensorflow_text", "pandas", "sklearn", "matplotlib")


@functools.cache  # a run builds its model several times
def _say_what_it_may_see(name: str) -> None:
    logger.warning(
        "KerasHub has no causal language model of %s: where its tokens see those behind them, they see the very ones "
        "that they are to tell, and losses say nothing",
        name,
    )


def load() -> None:
    """Imports KerasHub without TensorFlow."""
    libraries.load(["keras_hub"], without=_HIDDEN)


def build(
    keras: Any,
    inputs: Mapping[str, ArraySpec],
    outputs: OutputSpec,
    tokens: int = 0,
    backbone: str | None = None,
    task: str | None = None,
    preset: str | None = None,
    lora_rank: int | None = None,
    fused_head: bool = False,
    config: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Any:
    """Builds a model around a backbone.

    Args:
      keras: Keras 3, on the JAX backend.
      inputs: specs by name; see `runner.model.hub.inputs` for what is made of them.
      outputs: what the task wants.
      tokens: for how many tokens of an example it wants it; 0: for the example as a whole.
      backbone: KerasHub's class by its public name; None: as the preset says.
      task: `CausalLM`, `TextClassifier`, `ImageClassifier`, a class's name, or `Backbone` for a dense head; None: by
        the run's task.
      preset: a folder that `save_to_preset` wrote, or a preset's name, which is fetched.
      lora_rank: of adapters that are trained in place of the backbone; None: none.
      fused_head: gives the loss what logits are made of, which it then computes in chunks; causal language models.
      config: further keys of the class, whose names are taken above.
      **keys: the class's own keys.

    Returns:
      A functional model: arrays by name -> logits (B, T, units) of a language model, else (B, units).

    Raises:
      ValueError: the class does not take the arrays, or KerasHub has no such task for it.
    """
    load()
    per_token = tokens > 0
    given = options.given({**keys, **(config or {})})
    if preset is None:
        assert backbone is not None  # see `runner.model.hub.check`
        told = options.filled(backbone, given, inputs, outputs.units if per_token else None)
        held = None
        body = getattr(keras_hub.models, backbone)(**options.made(keras_hub, told))
    else:
        held = presets.opened(preset)
        body = held.backbone(keras, options.made(keras_hub, given))
    kind = heads.chosen(keras_hub, body, task, per_token=per_token)
    if per_token and kind is None and task is None:
        _say_what_it_may_see(type(body).__name__)
    size = next((found for key in options.SIZES if (found := getattr(body, key, None)) is not None), None)
    if per_token and size is not None and outputs.units is not None:
        options.check_vocabulary(type(body).__name__, size, outputs.units, tied=kind is not None)
    whole: Any = heads.attached(keras, kind, body, outputs.units, tokens)
    head = heads.in_chunks(keras, kind, body, whole) if fused_head else whole
    wanted = body.input if kind is None or fused_head else whole.input
    taken, called = hub_inputs.taken(keras, type(body).__name__, wanted, inputs)
    model = keras.Model(taken, head(called), name="keras_hub")
    if held is not None:
        stored.attach(model, held.values(body, None if kind is None else whole))
    if lora_rank is not None:
        tuning.enable_lora(body, lora_rank)
    return model
