"""Embeddings that are compared with those of the other rows of the batch: retrieval and metric learning.

Shapes: B rows of the global batch, D numbers of an embedding, N examples of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import PairsOptions, TaskConfig
from runner.data.base import Array, DataSource, column
from runner.errors import ConfigError, did_you_mean, invalid, listed
from runner.task import pair_losses
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Task, TaskData, named_outputs
from runner.task.metrics import MAXIMIZE
from runner.task.pair_losses import Pairs
from runner.task.supervised import Supervised, as_vector, is_real, no_array, read_columns, roles

# The loss of two outputs, whose pairs are told by their row; all others are of one output and labels.
TWO_TOWERS = "in_batch_softmax"
# The options that only some losses read.
_READERS: Mapping[str, tuple[str, ...]] = {
    "query": (TWO_TOWERS,),
    "candidate": (TWO_TOWERS,),
    "candidate_id": (TWO_TOWERS,),
    "symmetric": (TWO_TOWERS,),
    "temperature": (TWO_TOWERS, "supervised_contrastive", "n_pairs"),
    "distance": ("contrastive", "triplet"),
    "margin": ("contrastive", "triplet"),
    "mining": ("triplet",),
}
_OF_SCORES: Mapping[str, Callable[[Arrays, Tensor, Pairs], Tensor]] = {
    TWO_TOWERS: pair_losses.in_batch_softmax,
    "supervised_contrastive": pair_losses.supervised_contrastive,
    "n_pairs": pair_losses.n_pairs,
}
# Names of the sums of `PairsTask.totals`.
_MATCHED = "matched"
_HITS = "hits_"
# Numbers k of the table over a whole split.
_REPORTED = (1, 5, 10, 100)
# Most rows of a split that look for their match in the report: each is compared with the whole split.
_MOST_ANCHORS = 5_000
# Rows that are compared at a time on the host: 256 x 100,000 candidates are 100 MB.
_BLOCK = 256


def hit_counts(options: PairsOptions) -> tuple[int, ...]:
    """Returns the numbers k of the metrics `top_<k>`."""
    if options.top_k is None:
        return (1,)
    return (1, options.top_k)


def directions(options: PairsOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    return {f"top_{count}": MAXIMIZE for count in hit_counts(options)}


def step_metrics(options: PairsOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    return tuple(directions(options))


def check(options: PairsOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: an option has no effect on the loss.
    """
    defaults = PairsOptions()
    for name, losses in _READERS.items():
        value = getattr(options, name)
        if options.loss not in losses and value != getattr(defaults, name):
            raise invalid(
                f"task.{name}",
                value,
                problem=f"has no effect on task.loss={options.loss}",
                fix=f"remove it, or set task.loss={losses[0]}",
            )
    if options.distance == "cosine" and not options.normalize:
        raise invalid(
            "task.normalize",
            False,
            problem="has no effect on task.distance=cosine, which is of embeddings of length 1",
            fix="remove it, or set task.distance=euclidean",
        )


def make(config: TaskConfig, options: PairsOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return PairsTask(config, options, data)


class PairsTask(Supervised):
    """A loss over the pairs of a batch's rows, and the share of rows whose match is among the nearest of the batch.

    The loss and the metrics of a row depend on the other rows of its batch, in training and in an evaluation. Rows of
    padding are neither compared with others nor counted.
    """

    reads_batch = True

    def __init__(self, config: TaskConfig, options: PairsOptions, data: TaskData) -> None:
        """Settles the arrays; see `runner.task.registry.make_task`."""
        has_labels = options.loss != TWO_TOWERS
        if not has_labels and config.target:
            raise invalid(
                "task.target",
                ",".join(config.target),
                problem=f"task.loss={TWO_TOWERS} has no labels: the candidate of a row belongs to its query",
                fix="remove it, or set task.candidate_id if rows share candidates",
            )
        super().__init__(roles(config, data.arrays, needs_target=has_labels), data.arrays, directions(options))
        self.outputs = OutputSpec(options.units)
        self.step_metrics = step_metrics(options)
        self._options = options
        self._ids: str | None = options.candidate_id
        if has_labels:
            if len(self.target_names) > 1:
                raise _not_integers("task.target", ",".join(self.target_names), "several arrays")
            self._ids = self.target_names[0]
        else:
            # `roles` leaves out an array that is named as a target, which this loss does not read.
            self.arrays = {name: data.arrays[name] for name in self.arrays if name not in self.target_names}
        if self._ids is not None:
            self._check_ids("task.target" if has_labels else "task.candidate_id", self._ids, data)
        if has_labels and data.train is not None:
            self.check_split(data.train, "train")

    def _check_ids(self, key: str, name: str, data: TaskData) -> None:
        """Checks the array of labels or of candidates, and adds it to the task's arrays."""
        spec = data.arrays.get(name)
        if spec is None:
            raise invalid(
                key,
                name,
                problem=no_array(name, data.arrays),
                fix=did_you_mean(name, data.arrays, "name one of these"),
            )
        if spec.shape not in ((), (1,)) or np.dtype(spec.dtype).kind not in "iub":
            raise _not_integers(key, name, f"dtype {spec.dtype} and shape {list(spec.shape)}")
        self.arrays = {**self.arrays, name: spec}

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that a label occurs twice: without a pair of one label nothing can be learned."""
        if self._options.loss == TWO_TOWERS or self._ids is None:
            return
        labels = column(source, self._ids)
        if labels is None or len(labels) < 2 or len(np.unique(labels)) < len(labels):
            return
        raise invalid(
            "task.target",
            self._ids,
            problem=f"every example of the {split} split has a label of its own, so that no two belong together",
            fix=f"name another array, or set task.loss={TWO_TOWERS} and return two outputs",
        )

    def _embeddings(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the embeddings (B, D) of the queries and the candidates, or of the rows; zeros for padding."""
        tensors = [outputs]
        if self._options.loss == TWO_TOWERS:
            by_name = named_outputs(outputs)
            tensors = [by_name[name] for name in self._output_names(list(by_name))]
        embeddings = []
        for tensor in tensors:
            embedding_bd = pair_losses.without_padding(ops, tensor, is_real(ops, batch))
            if self._options.normalize:
                embedding_bd = pair_losses.normalized(ops, embedding_bd)
            embeddings.append(embedding_bd)
        return embeddings

    def _pairs(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Pairs:
        """Returns the pairs of the batch."""
        id_b = None
        if self._ids is not None:
            id_b = as_vector(ops, ops.cast(batch[self._ids], "int32"))
        if self._options.loss == TWO_TOWERS:
            return pair_losses.by_row(ops, id_b, is_real(ops, batch))
        return pair_losses.by_label(ops, id_b, is_real(ops, batch))

    def _distances(self, ops: Arrays, embedding_bd: Tensor) -> Tensor:
        return pair_losses.DISTANCES[self._options.distance](ops, embedding_bd)

    def _scores(self, ops: Arrays, embeddings: Sequence[Tensor]) -> Tensor:
        """Returns (B, B): the larger, the nearer."""
        if self._options.loss in _OF_SCORES:
            return pair_losses.products(ops, embeddings[0], embeddings[-1]) / self._options.temperature
        return -self._distances(ops, embeddings[0])

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each row's loss (B,), times its sample weight; 0 for padding."""
        options = self._options
        embeddings = self._embeddings(ops, outputs, batch)
        pairs = self._pairs(ops, batch)
        if options.loss in _OF_SCORES:
            function = _OF_SCORES[options.loss]
            loss_b = function(ops, self._scores(ops, embeddings), pairs)
            if options.symmetric:
                scores_of_candidates = self._scores(ops, embeddings[::-1])
                loss_b = 0.5 * (loss_b + function(ops, scores_of_candidates, pairs))
        else:
            of_distances: pair_losses.OfDistances = pair_losses.contrastive
            if options.loss == "triplet":
                of_distances = pair_losses.MINING[options.mining]
            sums_b, number = of_distances(ops, self._distances(ops, embeddings[0]), pairs, options.margin)
            loss_b = pair_losses.mean_of_batch(ops, sums_b, number, pairs.real)
        return self._weighted(ops, loss_b, batch)

    def _hits(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Returns by metric 1 for each row with a match among the k nearest, and the rows that have a match (B,)."""
        pairs = self._pairs(ops, batch)
        ahead_b, has_match_b = pair_losses.ranks(ops, self._scores(ops, self._embeddings(ops, outputs, batch)), pairs)
        hits = {}
        for count in hit_counts(self._options):
            hits[f"top_{count}"] = ops.cast(ops.less(ahead_b, float(count)), "float32") * has_match_b
        return hits, has_match_b

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns values (B,) whose mean over the batch is the share of its rows with a match that are hits."""
        hits, has_match_b = self._hits(ops, outputs, batch)
        number = ops.sum(has_match_b)
        real_b = is_real(ops, batch)
        return {name: pair_losses.mean_of_batch(ops, hit_b, number, real_b) for name, hit_b in hits.items()}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the numbers of hits, and of the rows with a match in their batch."""
        hits, has_match_b = self._hits(ops, outputs, batch)
        sums = {f"{_HITS}{name}": ops.sum(hit_b) for name, hit_b in hits.items()}
        return {**sums, _MATCHED: ops.sum(has_match_b)}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the shares of the rows with a match that are hits."""
        matched = float(totals[_MATCHED]) or 1.0
        return {name: float(totals[f"{_HITS}{name}"]) / matched for name in self.step_metrics}

    def _output_names(self, names: Sequence[str]) -> tuple[str, str]:
        """Returns the names of the outputs with the queries and the candidates.

        Raises:
          ConfigError: the model does not have them.
        """
        if len(names) < 2:
            raise ConfigError(
                f"model._target_: the model has one output, but task.loss={TWO_TOWERS} compares two; return queries "
                "and candidates, (queries, candidates), or set task.loss=supervised_contrastive with labels"
            )
        chosen = []
        for key, configured, place in (("query", self._options.query, 0), ("candidate", self._options.candidate, 1)):
            name = configured
            if name is None:
                name = key if key in names else names[place]
            elif name not in names:
                fix = did_you_mean(name, names, "name one of these")
                problem = f"the model has no output {name!r} (its outputs: {listed(names)})"
                raise invalid(f"task.{key}", name, problem=problem, fix=fix)
            chosen.append(name)
        query, candidate = chosen
        if query == candidate:
            raise invalid(
                "task.candidate",
                candidate,
                problem=f"must be another output than the queries; the model has {', '.join(names)}",
                fix="set task.query and task.candidate",
            )
        return query, candidate

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model returns one embedding per row."""
        if self._options.loss == TWO_TOWERS:
            self._output_names(["outputs"])
        self._check_embedding("the model's output", shape)

    def check_named(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Checks that a model returns queries and candidates of one size."""
        if self._options.loss != TWO_TOWERS:
            raise ConfigError(
                f"model._target_: the model has the outputs {', '.join(shapes)}, but task.loss={self._options.loss} "
                f"takes one embedding per row; return one, or set task.loss={TWO_TOWERS}"
            )
        query, candidate = self._output_names(list(shapes))
        for name in (query, candidate):
            self._check_embedding(f"output {name}", shapes[name])
        if shapes[query][-1] != shapes[candidate][-1]:
            raise ConfigError(
                f"model._target_: queries and candidates must have one size, but output {query} has "
                f"{shapes[query][-1]} numbers and output {candidate} {shapes[candidate][-1]}; end both in layers of "
                "one size"
            )

    def _check_embedding(self, subject: str, shape: Sequence[int | None]) -> None:
        units = self._options.units
        is_embedding = len(shape) == 2 and shape[1] is not None and units in (None, shape[1])
        if not is_embedding:
            size = "size" if units is None else str(units)
            raise ConfigError(
                f"model._target_: {subject} must be [batch, {size}], one embedding per row, but is {list(shape)}; end "
                "the model in a layer of that shape"
            )

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of how many rows find their match in the whole split, whatever the batches were."""
        embeddings = self._evaluated(evaluation)
        if not embeddings:
            return Report({}, {})
        anchors, others = embeddings[0], embeddings[-1]
        ids = None
        if self._ids is not None:
            ids = read_columns(source, [self._ids], len(anchors))[self._ids].reshape(-1)
        if self._options.loss == TWO_TOWERS:
            ahead = ranks_of_candidates(anchors, others, ids)
            number = len(others) if ids is None else len(np.unique(ids))
            meaning = "share of queries with their candidate among the k nearest"
        else:
            assert ids is not None
            ahead = ranks_of_labels(anchors, ids, by_distance=self._options.loss not in _OF_SCORES)
            # An example is not a neighbor of itself.
            number = len(others) - 1
            meaning = "share of examples with one of their label among the k nearest"
        if not len(ahead):
            return Report({}, {})
        rows: list[tuple[Cell, ...]] = []
        for count in sorted({*_REPORTED, *hit_counts(self._options)}):
            if count <= number:
                rows.append((count, round(float(np.mean(ahead < count)), 4)))
        title = f"{len(ahead):,} {split} examples, each among {number:,} of the whole split"
        return Report({}, {title: (("k", meaning), rows)})

    def _evaluated(self, evaluation: Evaluation) -> list[Array]:
        """Returns the embeddings (N, D) of an evaluation; nothing if it kept none."""
        tensors = [evaluation.outputs]
        if self._options.loss == TWO_TOWERS:
            if len(evaluation.named_outputs) < 2:
                return []
            names = self._output_names(list(evaluation.named_outputs))
            tensors = [evaluation.named_outputs[name] for name in names]
        if not tensors[0].size:
            return []
        scaled = []
        for tensor in tensors:
            embeddings = np.asarray(tensor, np.float32)
            if self._options.normalize or self._options.distance == "cosine":
                # The same least length as in `pair_losses.normalized`, which bounds its square. The cosine distance
                # needs it too: of vectors of length 1, the order of dot products and of Euclidean distances is that of
                # cosines.
                embeddings = embeddings / np.maximum(np.linalg.norm(embeddings, axis=-1, keepdims=True), 1e-6)
            scaled.append(embeddings)
        return scaled


def ranks_of_candidates(queries: Array, candidates: Array, ids: Array | None) -> Array:
    """Returns for each query (n,) how many candidates of a split score at least as high as its own.

    Args:
      queries: (N, D), of which the first look for their candidate.
      candidates: (N, D), in the same order.
      ids: of the candidates (N,), each of which counts once; None: all differ.
    """
    own = np.arange(len(candidates))
    if ids is not None:
        _, first, own = np.unique(ids, return_index=True, return_inverse=True)
        candidates = candidates[first]
    counts = []
    for start in range(0, min(len(queries), _MOST_ANCHORS), _BLOCK):
        block = queries[start : min(start + _BLOCK, _MOST_ANCHORS)]
        scores = block @ candidates.T
        mine = own[start : start + len(block)]
        own_scores = scores[np.arange(len(block)), mine]
        # The own candidate scores as high as itself, and is not counted.
        counts.append(np.sum(scores >= own_scores[:, None], axis=1) - 1)
    return np.concatenate(counts) if counts else np.zeros(0, np.int64)


def ranks_of_labels(embeddings: Array, labels: Array, *, by_distance: bool) -> Array:
    """Returns how many rows of other labels are at least as near as the nearest row of the same label.

    Args:
      embeddings: (N, D), of which the first look for a row of their label.
      labels: (N,).
      by_distance: near rows have a small Euclidean distance; False: a large dot product.

    Returns:
      (n,), without rows whose label no other row has.
    """
    half_squares = 0.5 * np.sum(np.square(embeddings), axis=-1)
    counts = [np.zeros(0, np.int64)]
    for start in range(0, min(len(embeddings), _MOST_ANCHORS), _BLOCK):
        block = embeddings[start : min(start + _BLOCK, _MOST_ANCHORS)]
        scores = block @ embeddings.T
        if by_distance:
            # Of one row, the order of -|x - y|^2 is that of x.y - |y|^2 / 2.
            scores = scores - half_squares
        rows = np.arange(len(block))
        is_same = labels[start : start + len(block), None] == labels[None, :]
        is_positive = is_same.copy()
        is_positive[rows, start + rows] = False
        best = np.max(np.where(is_positive, scores, -np.inf), axis=1, keepdims=True)
        ahead = np.sum(~is_same & (scores >= best), axis=1)
        counts.append(ahead[is_positive.any(axis=1)])
    return np.concatenate(counts)


def _not_integers(key: str, value: object, shape: str) -> ConfigError:
    return invalid(
        key,
        value,
        problem=f"must be an array of one integer per example, but has {shape}",
        fix="name another array",
    )
