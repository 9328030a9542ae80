"""Any KerasHub backbone with the head that the run's task needs: `model=keras_hub model.backbone=GPT2Backbone`.

For engine `jax` only. Causal language models and classifiers are KerasHub's own; a backbone without one for the run's
task gets a dense head. Variables have KerasHub's own paths.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.data.base import ArraySpec
from runner.errors import invalid
from runner.host.late import late
from runner.model import loading, stored
from runner.model.hub import heads, options, presets
from runner.model.hub import inputs as hub_inputs
from runner.task.base import OutputSpec

if TYPE_CHECKING:
    import keras_hub
else:
    keras_hub = late("keras_hub")

logger = logging.getLogger(__name__)

# KerasHub imports these if they are installed, TensorFlow for preprocessing of text. A run needs none of them.
_HIDDEN = ("tensorflow", "tensorflow_text", "pandas", "sklearn", "matplotlib")


# Once per class: a run builds its model several times.
@functools.cache
def _warn_of_leak(name: str) -> None:
    logger.warning(
        "KerasHub has no causal language model of %s: if its tokens attend to later ones, the target leaks into the "
        "input and losses mean nothing; use it only to verify a layout",
        name,
    )


def load() -> None:
    """Imports KerasHub without TensorFlow."""
    loading.load(["keras_hub"], without=_HIDDEN)


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
      tokens: number of tokens per example for which the task wants an output each; 0: one output per example.
      backbone: public name of KerasHub's class; None: that of the preset.
      task: `CausalLM`, `TextClassifier`, `ImageClassifier`, a class's name, or `Backbone` for a dense head; None: by
        the run's task.
      lora_rank: LoRA rank; None: full fine-tuning.

    Returns:
      A functional model: arrays by name -> logits (B, T, units) of a language model, else (B, units).

    Raises:
      ConfigError: there is no such class, or its options don't fit it or the data.
      ValueError: the class does not accept the arrays, or KerasHub has no such task for it.
    """
    for key in keys.keys() & (config or {}):
        problem = f"model.{key} is set too"
        raise invalid(f"model.config.{key}", (config or {})[key], problem=problem, fix="remove one of the two")
    load()
    per_token = tokens > 0
    class_options = options.without_unset({**keys, **(config or {})})
    opened_preset = None
    base = keras_hub.models.Backbone
    if preset is None:
        # `runner.model.hub.check` has required one of the two.
        assert backbone is not None
        vocabulary = None
        if per_token:
            vocabulary = outputs.units
        backbone_class = options.find(keras_hub, backbone, "model.backbone", base)
        class_options = options.with_data(backbone_class, class_options, inputs, vocabulary)
        body = backbone_class(**options.instantiated(keras_hub, keras, class_options))
    else:
        opened_preset = presets.opened(preset)
        options.find(keras_hub, opened_preset.name, "model.preset", base)
        body = opened_preset.backbone(keras, options.instantiated(keras_hub, keras, class_options))

    name = type(body).__name__
    if per_token:
        options.check_positions(body, keras_hub.layers.PositionEmbedding, tokens)
    task_class = heads.choose(keras_hub, body, task, per_token=per_token)
    if per_token and task_class is None and task is None:
        _warn_of_leak(name)
    size = _vocabulary_size(body)
    if per_token and size is not None and outputs.units is not None:
        options.check_vocabulary(name, size, outputs.units, tied=task_class is not None, preset=preset)

    task_model: Any = heads.attach(keras, task_class, body, outputs.units, tokens)
    head = task_model
    if fused_head:
        head = heads.fuse(keras, task_class, body, task_model)
    # A task model of KerasHub may have other inputs than its backbone.
    backbone_inputs = body.input
    if task_class is not None and not fused_head:
        backbone_inputs = task_model.input
    model_inputs, head_inputs = hub_inputs.connected(keras, name, backbone_inputs, inputs)
    model = keras.Model(model_inputs, head(head_inputs), name="keras_hub")

    if opened_preset is not None:
        hub_task_model = task_model
        if task_class is None:
            # A dense head of this package has no values in a preset.
            hub_task_model = None
        stored.give(model, opened_preset.values(body, hub_task_model))
    # After the weights: adapters are not among them.
    if lora_rank is not None:
        _enable_lora(body, lora_rank)
    return model


def _enable_lora(backbone: Any, rank: int) -> None:
    """Adds low-rank adapters (Hu et al., arXiv:2106.09685) to the layers that the class names; freezes the others."""
    backbone.enable_lora(rank)
    # KerasHub leaves the biases of adapted layers trainable. LoRA trains the two low-rank kernels only.
    for variable in backbone.trainable_variables:
        if not variable.name.startswith("lora_"):
            variable.trainable = False
    if not backbone.trainable_variables:
        names = ", ".join(backbone.default_lora_layer_names())
        problem = f"{type(backbone).__name__} has no layer that supports adapters (layers named {names})"
        fix = "remove model.lora_rank, and select trainable variables with model.trainable"
        raise invalid("model.lora_rank", rank, problem=problem, fix=fix)


def _vocabulary_size(backbone: Any) -> int | None:
    for attribute in options.SIZES:
        size: int | None = getattr(backbone, attribute, None)
        if size is not None:
            return size
    return None
