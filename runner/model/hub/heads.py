"""The part of a model of KerasHub behind its backbone: what the run's task wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runner.errors import did_you_mean
from runner.host.late import late

if TYPE_CHECKING:
    from runner.model.hub import private
else:
    private = late("runner.model.hub.private")

BACKBONE = "Backbone"  # as a task: a dense head of ours on what the backbone gives
KINDS = ("CausalLM", "TextClassifier", "ImageClassifier", BACKBONE)

Head = Callable[[Any], Any]  # what the backbone is called with -> the model's output


def chosen(hub: Any, backbone: Any, task: str | None, *, per_token: bool) -> Any:
    """Returns the class of KerasHub's that is to stand behind a backbone; None: a head of ours.

    Args:
      hub: the module `keras_hub`.
      backbone: built.
      task: the config's: one of `KINDS`, a class's name, or None: what the run's task needs and KerasHub has.
      per_token: the run's task wants an answer a token.

    Raises:
      ValueError: there is none for this backbone.
    """
    if task == BACKBONE:
        return None
    names = sorted(vars(hub.models), key=len)  # plain ones first: Gemma4CausalLM, then Gemma4AssistantCausalLM
    own = {name: kind for name in names if _is_for(hub, kind := getattr(hub.models, name), backbone)}
    wanted = ("CausalLM",) if per_token else ("TextClassifier", "ImageClassifier")
    if task is None:
        return next((kind for end in wanted for name, kind in own.items() if name.endswith(end)), None)
    found = next((kind for name, kind in own.items() if name == task or (task in KINDS and name.endswith(task))), None)
    if found is None:
        there = [name for name in own if name.endswith(KINDS)]
        raise ValueError(
            f"KerasHub has no {task} for {type(backbone).__name__}, but {', '.join(there) or 'none at all'}; "
            f"{did_you_mean(task, there, f'set model.task={BACKBONE} for a dense head')}"
        )
    return found


def _is_for(hub: Any, kind: Any, backbone: Any) -> bool:
    is_task = isinstance(kind, type) and issubclass(kind, hub.models.Task)
    return is_task and getattr(kind, "backbone_cls", None) is type(backbone)


def attached(keras: Any, kind: Any, backbone: Any, units: int | None, tokens: int) -> Head:
    """Returns a function from what a backbone takes to logits.

    Args:
      keras: the module.
      kind: of `chosen`.
      backbone: built.
      units: what the task wants; None: it takes any, and gets what the backbone gives.
      tokens: T of logits (B, T, units); 0: they are (B, units).
    """
    if kind is not None:
        told = {} if kind.__name__.endswith("LM") else {"num_classes": units, "activation": None}
        # Not compiled: a run has its own optimizer. No preprocessor: a run's arrays are numbers already.
        head: Head = kind(backbone=backbone, preprocessor=None, compile=False, **told)
        return head
    if units is None:
        return lambda taken: backbone(taken)
    return (
        (lambda taken: _by_token(keras, backbone, backbone(taken), tokens, units))
        if tokens
        else (lambda taken: keras.layers.Dense(units, name="head")(_pooled(keras, backbone(taken))))
    )


def in_chunks(keras: Any, kind: Any, backbone: Any, whole: Any) -> Head:
    """Returns a head that leaves the logits of a causal language model to the loss, which never holds them whole.

    Args:
      keras: the module.
      kind: of `chosen`.
      backbone: built.
      whole: the model of `kind` around it, whose logits are made otherwise.

    Returns:
      A function to {"hidden": (B, T, D), "head": (D, V)}.

    Raises:
      ValueError: its logits are not a product with the embeddings alone.
    """
    embedding = backbone.token_embedding
    plain = kind is not None and private.giver(whole.output) is embedding
    if not plain or getattr(embedding, "logit_soft_cap", None) is not None:
        raise ValueError(
            f"model.fused_head needs logits that are a product with the embeddings, and {type(backbone).__name__} "
            "gives others; leave it out"
        )

    class Apart(keras.layers.Layer):  # type: ignore[misc]
        """What logits are made of: the last hidden layer, and the embeddings in reverse."""

        def __init__(self, reversed_embedding: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.embedding = reversed_embedding

        def call(self, x_btd: Any) -> dict[str, Any]:
            """Returns both."""
            tied = self.embedding.tie_weights
            kernel = self.embedding.embeddings if tied else self.embedding.reverse_embeddings
            kernel = keras.ops.cast(keras.ops.convert_to_tensor(kernel), x_btd.dtype)
            return {"hidden": x_btd, "head": keras.ops.transpose(kernel) if tied else kernel}

    return lambda taken: Apart(embedding, name="head")(backbone(taken))


def _by_token(keras: Any, backbone: Any, given: Any, tokens: int, units: int) -> Any:
    """Returns logits (B, T, units) by the embedding's transpose where that fits, else by a dense layer."""
    leaves = _leaves(given)
    hidden = [x for x in leaves if len(x.shape) == 3 and x.shape[1] == tokens]
    if not hidden:
        shapes = ", ".join(str(list(x.shape[1:])) for x in leaves)
        raise ValueError(f"{type(backbone).__name__} gives {shapes}, and nothing for each of {tokens} tokens")
    x = hidden[-1]  # a decoder's comes behind its encoder's
    embedding = backbone.token_embedding
    fits = getattr(embedding, "input_dim", None) == units and embedding.output_dim == x.shape[-1]
    if fits and hasattr(embedding, "tie_weights"):  # which can be called in reverse
        return embedding(x, reverse=True)
    return keras.layers.Dense(units, use_bias=False, name="head")(x)


def _pooled(keras: Any, given: Any) -> Any:
    """Returns one vector an example: the mean over all dims but the last, of each that a backbone gives.

    Raises:
      ValueError: it gives nothing of an example alone, as the similarities of each example to each other.
    """
    vectors = [
        x if len(x.shape) == 2 else keras.ops.mean(x, axis=tuple(range(1, len(x.shape) - 1)))
        for x in _leaves(given)
        if len(x.shape) > 1 and "int" not in str(x.dtype) and x.shape[-1] is not None
    ]
    if not vectors:
        shapes = ", ".join(str(list(x.shape)) for x in _leaves(given))
        raise ValueError(f"the backbone gives {shapes}, nothing of features of each example, which a head could take")
    return vectors[0] if len(vectors) == 1 else keras.ops.concatenate(vectors, axis=-1)


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        return [x for each in given.values() for x in _leaves(each)]
    if isinstance(given, list | tuple):
        return [x for each in given for x in _leaves(each)]
    return [given]
