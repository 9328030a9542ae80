"""Heads of KerasHub models: the part after the backbone that computes what the run's task needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.errors import did_you_mean
from runner.host.late import late
from runner.model.portable import PortableLayer, Tensor, bind, flat

if TYPE_CHECKING:
    from runner.model.hub import private
else:
    private = late("runner.model.hub.private")

# As a value of model.task: a dense head of this package.
BACKBONE = "Backbone"
KINDS = ("CausalLM", "TextClassifier", "ImageClassifier", BACKBONE)

# A function of the backbone's inputs to the model's output.
Head = Callable[[Any], Any]


class HeadFactors(PortableLayer):
    """Returns the factors of tied logits: hidden vectors and reversed table."""

    def __init__(self, reversed_embedding: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding = reversed_embedding

    def call(self, x_btd: Tensor) -> dict[str, Tensor]:
        """Returns {"hidden": (B, T, D), "head": (D, V)}."""
        ops = self.ops
        if self.embedding.tie_weights:
            table = ops.convert_to_tensor(self.embedding.embeddings)
            kernel = ops.transpose(ops.cast(table, x_btd.dtype))
        else:
            kernel = ops.cast(ops.convert_to_tensor(self.embedding.reverse_embeddings), x_btd.dtype)
        return {"hidden": x_btd, "head": kernel}


def choose(hub: Any, backbone: Any, task: str | None, *, per_token: bool) -> Any:
    """Returns KerasHub's task class for a backbone; None: a head of this package.

    Args:
      task: the config's: one of `KINDS`, or a class's name; None: the class that the run's task needs, if KerasHub has
        it.

    Raises:
      ValueError: there is no such class for this backbone.
    """
    if task == BACKBONE:
        return None
    own_classes = {}
    # Shortest names first, so that the plain class wins: Gemma4CausalLM before Gemma4AssistantCausalLM.
    for name in sorted(vars(hub.models), key=len):
        candidate = getattr(hub.models, name)
        is_task = isinstance(candidate, type) and issubclass(candidate, hub.models.Task)
        if is_task and getattr(candidate, "backbone_cls", None) is type(backbone):
            own_classes[name] = candidate
    if task is None:
        # A task with one output per example does not tell whether the inputs are texts or images; the backbone does.
        kinds = ["TextClassifier", "ImageClassifier"]
        if per_token:
            kinds = ["CausalLM"]
        for kind in kinds:
            for name, task_class in own_classes.items():
                if name.endswith(kind):
                    return task_class
        return None
    for name, task_class in own_classes.items():
        if name == task or (task in KINDS and name.endswith(task)):
            return task_class
    names = [name for name in own_classes if name.endswith(KINDS)]
    raise ValueError(
        f"KerasHub has no {task} for {type(backbone).__name__}, but {', '.join(names) or 'none at all'}; "
        f"{did_you_mean(task, names, f'set model.task={BACKBONE} for a dense head')}"
    )


def attach(keras: Any, task_class: Any, backbone: Any, units: int | None, tokens: int) -> Head:
    """Returns a function of a backbone's inputs to logits; without a number of units, to the backbone's outputs."""
    if task_class is not None:
        options = {}
        if not task_class.__name__.endswith("LM"):
            options = {"num_classes": units, "activation": None}
        # Not compiled: a run has its own optimizer. No preprocessor: a run's arrays are numbers already.
        head: Head = task_class(backbone=backbone, preprocessor=None, compile=False, **options)
        return head
    if units is None:
        return lambda inputs: backbone(inputs)
    if tokens:
        return lambda inputs: _token_logits(keras, backbone, backbone(inputs), tokens, units)
    return lambda inputs: keras.layers.Dense(units, name="head")(_pooled(keras, backbone(inputs)))


def fuse(keras: Any, task_class: Any, backbone: Any, task_model: Any) -> Head:
    """Returns a head, to {"hidden": (B, T, D), "head": (D, V)}, that leaves the logits to a loss in chunks.

    Raises:
      ValueError: its logits are not just a product with the embeddings.
    """
    embedding = backbone.token_embedding
    is_product = task_class is not None and private.producer(task_model.output) is embedding
    has_cap = getattr(embedding, "logit_soft_cap", None) is not None
    if not is_product or has_cap:
        raise ValueError(
            "model.fused_head needs logits that are a product with the embeddings, but those of "
            f"{type(backbone).__name__} are not; remove it"
        )
    return lambda inputs: bind(HeadFactors, keras)(embedding, name="head")(backbone(inputs))


def _token_logits(keras: Any, backbone: Any, outputs: Any, tokens: int, units: int) -> Tensor:
    """Returns logits (B, T, units) from the backbone's outputs.

    They are a product with the transposed embeddings if these have the right shape, else the output of a dense layer.
    """
    tensors = flat(outputs)
    hidden = [x for x in tensors if len(x.shape) == 3 and x.shape[1] == tokens]
    if not hidden:
        shapes = ", ".join(str(list(x.shape[1:])) for x in tensors)
        raise ValueError(f"{type(backbone).__name__} returns {shapes}, nothing for each of {tokens} tokens")
    # The last: an encoder-decoder model lists the decoder's output after the encoder's.
    x_btd = hidden[-1]
    embedding = backbone.token_embedding
    has_right_shape = getattr(embedding, "input_dim", None) == units and embedding.output_dim == x_btd.shape[-1]
    # Only a reversible embedding has this attribute.
    is_reversible = hasattr(embedding, "tie_weights")
    if has_right_shape and is_reversible:
        return embedding(x_btd, reverse=True)
    return keras.layers.Dense(units, use_bias=False, name="head")(x_btd)


def _pooled(keras: Any, outputs: Any) -> Tensor:
    tensors = flat(outputs)
    vectors = []
    for x in tensors:
        has_features = len(x.shape) > 1 and x.shape[-1] is not None and "int" not in str(x.dtype)
        if not has_features:
            continue
        if len(x.shape) > 2:
            x = keras.ops.mean(x, axis=tuple(range(1, len(x.shape) - 1)))
        vectors.append(x)
    if not vectors:
        shapes = ", ".join(str(list(x.shape)) for x in tensors)
        raise ValueError(f"the backbone gives {shapes}, nothing of features of each example, which a head could take")
    if len(vectors) == 1:
        return vectors[0]
    return keras.ops.concatenate(vectors, axis=-1)
