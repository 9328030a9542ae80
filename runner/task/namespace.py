"""The array namespace of losses and metrics: `runner.arrays`, and losses that the libraries have themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, partial
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Function, Tensor
from runner.task import token_losses


@dataclass(frozen=True)
class Namespace(Arrays):
    """Functions of one library's arrays.

    Attributes:
      sparse_cross_entropy: (labels, logits), int32 (...) and float32 (..., C) -> nats (...).
      cross_entropy: (probabilities, logits), both float32 (..., C) -> nats (...).
      sigmoid_cross_entropy: (labels, logits), of one shape, labels from 0 to 1 -> nats, elementwise.
      head_losses: (hidden, head, bias, label, weight), see `runner.task.token_losses.linear`.
    """

    sparse_cross_entropy: Function
    cross_entropy: Function
    sigmoid_cross_entropy: Function
    head_losses: Function


FIELDS = tuple(field.name for field in fields(Namespace))


@cache
def of(module: ModuleType) -> Namespace:
    """Returns the functions of a library's arrays.

    Args:
      module: `numpy`, `tensorflow` or `jax.numpy`, imported.

    Raises:
      ValueError: another module.
    """
    xp = arrays.of(module)
    losses = _of_tensorflow(module) if xp.name == "tensorflow" else _like_numpy(module, xp)
    # The losses of a head are written in the other functions of the namespace.
    namespace = Namespace(
        **vars(xp),
        sparse_cross_entropy=losses["sparse_cross_entropy"],
        cross_entropy=losses["cross_entropy"],
        sigmoid_cross_entropy=losses["sigmoid_cross_entropy"],
        head_losses=token_losses.linear,
    )
    return replace(namespace, head_losses=partial(token_losses.linear, namespace))


def _of_tensorflow(tf: ModuleType) -> dict[str, Function]:
    return {
        "sparse_cross_entropy": lambda labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits),
        "cross_entropy": lambda labels, logits: tf.nn.softmax_cross_entropy_with_logits(labels, logits),
        "sigmoid_cross_entropy": lambda labels, logits: tf.nn.sigmoid_cross_entropy_with_logits(labels, logits),
    }


def _like_numpy(module: ModuleType, xp: Arrays) -> dict[str, Function]:
    """Returns the losses of a library that has NumPy's functions under NumPy's names."""

    def sparse_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
        # By a product with the one-hot labels: a gather along a sharded dim would communicate.
        chosen = module.sum(logits * xp.one_hot(labels, module.shape(logits)[-1]), -1)
        return xp.logsumexp(logits) - chosen

    def sigmoid_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
        # max(x, 0) - x * z + log(1 + exp(-|x|)), chosen as in TensorFlow: nothing overflows, the slope at 0 is right.
        above = logits >= 0
        part = module.where(above, logits, module.zeros_like(logits)) - logits * labels
        return part + module.log1p(module.exp(module.where(above, -logits, logits)))

    return {
        "sparse_cross_entropy": sparse_cross_entropy,
        "cross_entropy": lambda labels, logits: -module.sum(labels * xp.log_softmax(logits), -1),
        "sigmoid_cross_entropy": sigmoid_cross_entropy,
    }
