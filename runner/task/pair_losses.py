"""Losses that compare every row of a batch with every other, and the ranks of a row's matches.

Shapes: B rows of the batch, D numbers of an embedding. Of a tensor (B, B), the first dim has the anchors, that is the
rows whose loss is computed, and the second dim has the rows that they are compared with. Each loss is float32 (B,).
Its mean over the batch's real rows is the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from runner.arrays import Arrays, Tensor

# A score of pairs that don't count: finite, because a sum of exponentials over nothing else must not be NaN, and far
# below every score of normalized embeddings at any temperature.
_NO_SCORE = -1e30
# Least squared length of an embedding that is normalized, as in Keras's UnitNormalization.
_LEAST_SQUARED_LENGTH = 1e-12

# (ops, distances (B, B), pairs, margin) -> sums of losses (B,), and their number ().
OfDistances = Callable[[Arrays, Tensor, "Pairs", float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Pairs:
    """The pairs of a batch's rows that count, without padding and without a row and itself.

    Attributes:
      real: bool (B,), False for padding.
      positive: bool (B, B), pairs that belong together.
      negative: bool (B, B), pairs that don't.
    """

    real: Tensor
    positive: Tensor
    negative: Tensor


def by_label(ops: Arrays, label_b: Tensor, real_b: Tensor) -> Pairs:
    """Returns pairs of the same label and pairs of different labels.

    Args:
      ops: the engine's.
      label_b: integers (B,).
      real_b: bool (B,).
    """
    is_same = _all_equal(ops, label_b)
    is_real = _both(ops, real_b)
    positive = ops.logical_and(ops.logical_and(is_same, is_real), ops.logical_not(_diagonal(ops, real_b)))
    return Pairs(real_b, positive, ops.logical_and(ops.logical_not(is_same), is_real))


def by_row(ops: Arrays, item_b: Tensor | None, real_b: Tensor) -> Pairs:
    """Returns pairs of a query and an item: a query belongs to the item of its row.

    Args:
      ops: the engine's.
      item_b: integers (B,), the ID of each row's item. A query and the item of another row are no pair if that item is
        also the query's own. None: all rows have different items.
      real_b: bool (B,).
    """
    diagonal = _diagonal(ops, real_b)
    is_own = diagonal
    if item_b is not None:
        is_own = ops.logical_or(_all_equal(ops, item_b), diagonal)
    is_real = _both(ops, real_b)
    return Pairs(real_b, ops.logical_and(diagonal, is_real), ops.logical_and(ops.logical_not(is_own), is_real))


def without_padding(ops: Arrays, embedding_bd: Tensor, real_b: Tensor) -> Tensor:
    """Returns embeddings with zeros for padding, whose values may be NaN."""
    is_real = ops.logical_and(ops.expand_dims(real_b, -1), ops.equal(ops.zeros_like(embedding_bd), 0.0))
    # Chosen and not multiplied by 0: NaN times 0 is NaN.
    return ops.where(is_real, embedding_bd, ops.zeros_like(embedding_bd))


def normalized(ops: Arrays, embedding_bd: Tensor) -> Tensor:
    """Returns embeddings of length 1."""
    squared = ops.sum(ops.square(embedding_bd), axis=-1, keepdims=True)
    return embedding_bd * ops.rsqrt(ops.maximum(squared, _LEAST_SQUARED_LENGTH))


def products(ops: Arrays, anchor_bd: Tensor, other_bd: Tensor) -> Tensor:
    """Returns the dot products (B, B) of anchors and others."""
    return ops.matmul(anchor_bd, ops.transpose(ops.all_rows(other_bd)))


def squared_distances(ops: Arrays, embedding_bd: Tensor) -> Tensor:
    """Returns the squared Euclidean distances (B, B)."""
    square_b = ops.sum(ops.square(embedding_bd), axis=-1)
    sums = ops.expand_dims(square_b, 1) + ops.expand_dims(ops.all_rows(square_b), 0)
    # Of two rows that are nearly equal, rounding can make the difference slightly negative, and its root would be NaN.
    return _above_zero(ops, sums - 2.0 * products(ops, embedding_bd, embedding_bd))


def distances(ops: Arrays, embedding_bd: Tensor) -> Tensor:
    """Returns the Euclidean distances (B, B), with gradient 0 where a distance is 0."""
    squared = squared_distances(ops, embedding_bd)
    is_positive = ops.greater(squared, 0.0)
    # The gradient of a root at 0 is infinite, and times the 0 that the outer `where` passes back it is NaN. So the
    # root is taken of 1 there.
    root = ops.sqrt(ops.where(is_positive, squared, ops.ones_like(squared)))
    return ops.where(is_positive, root, ops.zeros_like(root))


def cosine_distances(ops: Arrays, embedding_bd: Tensor) -> Tensor:
    """Returns 1 - cosine similarity, (B, B)."""
    unit_bd = normalized(ops, embedding_bd)
    return 1.0 - products(ops, unit_bd, unit_bd)


DISTANCES: Mapping[str, Callable[[Arrays, Tensor], Tensor]] = {
    "squared_euclidean": squared_distances,
    "euclidean": distances,
    "cosine": cosine_distances,
}


def supervised_contrastive(ops: Arrays, scores: Tensor, pairs: Pairs) -> Tensor:
    """Returns each row's supervised contrastive loss (B,) in nats; 0 for a row without a positive.

    Khosla et al., Supervised Contrastive Learning (2020), equation 2: the mean over a row's positives of the negative
    log-softmax of their scores, over all other rows.

    Args:
      ops: the engine's.
      scores: (B, B), similarities divided by the temperature.
      pairs: by label.
    """
    counted = ops.logical_or(pairs.positive, pairs.negative)
    logarithm = ops.expand_dims(ops.logsumexp(_only(ops, counted, scores, _NO_SCORE)), -1)
    nats = ops.sum(_only(ops, pairs.positive, logarithm - scores, 0.0), axis=-1)
    return nats / ops.maximum(_count(ops, pairs.positive), 1.0)


def in_batch_softmax(ops: Arrays, scores: Tensor, pairs: Pairs) -> Tensor:
    """Returns each query's cross-entropy (B,) in nats: its own item against all items of the batch.

    Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019).

    Args:
      ops: the engine's.
      scores: (B, B), divided by the temperature.
      pairs: by row.
    """
    counted = ops.logical_or(pairs.positive, pairs.negative)
    logarithm_b = ops.logsumexp(_only(ops, counted, scores, _NO_SCORE))
    own_b = ops.sum(_only(ops, pairs.positive, scores, 0.0), axis=-1)
    return ops.where(pairs.real, logarithm_b - own_b, ops.zeros_like(own_b))


def n_pairs(ops: Arrays, scores: Tensor, pairs: Pairs) -> Tensor:
    """Returns each row's N-pairs loss (B,) in nats, of which the rows of the same label share the probability.

    Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective (2016), as in TensorFlow Addons and
    Keras's examples: a row and itself is a pair of the same label.

    Args:
      ops: the engine's.
      scores: (B, B), similarities divided by the temperature.
      pairs: by label.
    """
    with_itself = ops.logical_or(pairs.positive, ops.logical_and(_diagonal(ops, pairs.real), _both(ops, pairs.real)))
    counted = ops.logical_or(with_itself, pairs.negative)
    logarithm = ops.expand_dims(ops.logsumexp(_only(ops, counted, scores, _NO_SCORE)), -1)
    nats = ops.sum(_only(ops, with_itself, logarithm - scores, 0.0), axis=-1)
    return nats / ops.maximum(_count(ops, with_itself), 1.0)


def contrastive(ops: Arrays, distance: Tensor, pairs: Pairs, margin: float) -> tuple[Tensor, Tensor]:
    """Returns the sum of each row's losses over its pairs, and the number of pairs of the batch.

    Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping (2006): the squared distance of a
    positive pair, and the square of what a negative pair lacks to the margin. Each pair counts from both of its rows.
    """
    positive_bb = _only(ops, pairs.positive, ops.square(distance), 0.0)
    negative_bb = _only(ops, pairs.negative, ops.square(_above_zero(ops, margin - distance)), 0.0)
    number_b = _count(ops, pairs.positive) + _count(ops, pairs.negative)
    return ops.sum(positive_bb + negative_bb, axis=-1), ops.sum(number_b)


def hard_triplets(ops: Arrays, distance: Tensor, pairs: Pairs, margin: float) -> tuple[Tensor, Tensor]:
    """Returns the loss of each row's farthest positive and nearest negative, and the number of rows with both.

    Hermans et al., In Defense of the Triplet Loss for Person Re-Identification (2017), equation 5 (batch hard).
    """
    farthest_b = ops.max(_only(ops, pairs.positive, distance, _NO_SCORE), axis=-1)
    nearest_b = ops.min(_only(ops, pairs.negative, distance, -_NO_SCORE), axis=-1)
    has_both_b = ops.logical_and(_has(ops, pairs.positive), _has(ops, pairs.negative))
    loss_b = _above_zero(ops, farthest_b - nearest_b + margin)
    return _only(ops, has_both_b, loss_b, 0.0), ops.sum(ops.cast(has_both_b, "float32"))


def all_triplets(ops: Arrays, distance: Tensor, pairs: Pairs, margin: float) -> tuple[Tensor, Tensor]:
    """Returns the sum of each row's losses over every pair of a positive and a negative, and the number of triplets.

    Hermans et al. (2017), equation 6 (batch all). It computes (B, B, B).
    """
    difference_bpn = ops.expand_dims(distance, 2) - ops.expand_dims(distance, 1)
    loss_bpn = _above_zero(ops, difference_bpn + margin)
    is_triplet = ops.logical_and(ops.expand_dims(pairs.positive, 2), ops.expand_dims(pairs.negative, 1))
    triplets_b = _count(ops, pairs.positive) * _count(ops, pairs.negative)
    return ops.sum(_only(ops, is_triplet, loss_bpn, 0.0), axis=(1, 2)), ops.sum(triplets_b)


def semi_hard_triplets(ops: Arrays, distance: Tensor, pairs: Pairs, margin: float) -> tuple[Tensor, Tensor]:
    """Returns the sum of each row's losses over its positives, and the number of positive pairs.

    Schroff et al., FaceNet (2015): the negative of a positive is the nearest one that is farther away than the
    positive, or the farthest of all if none is. It computes (B, B, B).
    """
    farther = ops.greater(ops.expand_dims(distance, 1), ops.expand_dims(distance, 2))
    is_candidate = ops.logical_and(farther, ops.expand_dims(pairs.negative, 1))
    distance_bpn = ops.expand_dims(distance, 1) + ops.zeros_like(ops.expand_dims(distance, 2))
    nearest_bp = ops.min(_only(ops, is_candidate, distance_bpn, -_NO_SCORE), axis=-1)
    has_candidate_bp = ops.greater(ops.sum(ops.cast(is_candidate, "float32"), axis=-1), 0.0)
    farthest_b1 = ops.max(_only(ops, pairs.negative, distance, _NO_SCORE), axis=-1, keepdims=True)
    negative_bp = ops.where(has_candidate_bp, nearest_bp, farthest_b1 + ops.zeros_like(nearest_bp))
    has_negative_b1 = ops.expand_dims(_has(ops, pairs.negative), -1)
    is_counted = ops.logical_and(pairs.positive, has_negative_b1)
    loss_bp = _above_zero(ops, distance - negative_bp + margin)
    return ops.sum(_only(ops, is_counted, loss_bp, 0.0), axis=-1), ops.sum(_count(ops, is_counted))


MINING: Mapping[str, OfDistances] = {"semi_hard": semi_hard_triplets, "hard": hard_triplets, "all": all_triplets}


def mean_of_batch(ops: Arrays, sums_b: Tensor, number: Tensor, real_b: Tensor) -> Tensor:
    """Returns values (B,) whose mean over the real rows is the sum of `sums_b` divided by a number, or 0 if that is 0.

    Args:
      ops: the engine's.
      sums_b: (B,), 0 for padding.
      number: scalar, what the sums are divided by.
      real_b: bool (B,).
    """
    rows = ops.sum(ops.cast(real_b, "float32"))
    return sums_b * (rows / ops.maximum(number, 1.0))


def ranks(ops: Arrays, scores: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Returns how many negatives score at least as high as a row's best positive, and which rows have a positive.

    Equal scores count against the row, so that a model which gives every row one embedding finds nothing.

    Returns:
      Both float32 (B,).
    """
    best_b1 = ops.max(_only(ops, pairs.positive, scores, _NO_SCORE), axis=-1, keepdims=True)
    # Equal scores count as ahead, so a model that gives all rows one embedding has no hits.
    is_ahead = ops.logical_and(pairs.negative, ops.greater_equal(scores, best_b1))
    return _count(ops, is_ahead), ops.cast(_has(ops, pairs.positive), "float32")


def _diagonal(ops: Arrays, real_b: Tensor) -> Tensor:
    """Returns bool (B, B), True for a row and itself."""
    # From a constant and a tensor of the batch, so that it is sharded as that is.
    identity = np.eye(int(real_b.shape[0]), dtype=np.float32)
    zeros_b1 = ops.expand_dims(ops.cast(real_b, "float32") * 0.0, -1)
    return ops.greater(zeros_b1 + identity, 0.5)


def _all_equal(ops: Arrays, values_b: Tensor) -> Tensor:
    """Returns bool (B, B), True where two rows have the same value."""
    return ops.equal(ops.expand_dims(values_b, 1), ops.expand_dims(ops.all_rows(values_b), 0))


def _both(ops: Arrays, real_b: Tensor) -> Tensor:
    """Returns bool (B, B), True where neither row is padding."""
    return ops.logical_and(ops.expand_dims(real_b, 1), ops.expand_dims(ops.all_rows(real_b), 0))


def _only(ops: Arrays, counted: Tensor, values: Tensor, other: float) -> Tensor:
    """Returns the values that count, and another number in place of the others, which have no gradient."""
    return ops.where(counted, values, ops.zeros_like(values) + other)


def _above_zero(ops: Arrays, values: Tensor) -> Tensor:
    """Returns the larger of values and 0; the gradient at 0 is 0 with every library, which `maximum` does not have."""
    return ops.where(ops.greater(values, 0.0), values, ops.zeros_like(values))


def _count(ops: Arrays, counted: Tensor) -> Tensor:
    """Returns float32 (B,), how many pairs of each row count."""
    return ops.sum(ops.cast(counted, "float32"), axis=-1)


def _has(ops: Arrays, counted: Tensor) -> Tensor:
    """Returns bool (B,), whether any pair of a row counts."""
    return ops.greater(_count(ops, counted), 0.0)
