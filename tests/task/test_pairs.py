"""The losses over the pairs of a batch equal their definitions, written with loops, without the rows of padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.data.base import WEIGHT, ArraySource, ArraySpec
from runner.errors import ConfigError
from runner.task.base import LOSS, Evaluation, Task
from runner.task.registry import make_task
from tests.task.cases import config

REAL, PADDED, SIZE = 9, 3, 4
X = ArraySpec((3,), "float32")
LABEL = ArraySpec((), "int32")
OPS = arrays.of(np)
Rows = np.ndarray


def batch_of(label: Rows) -> dict[str, Rows]:
    """Returns a batch whose padding has labels of real rows."""
    ids = np.concatenate([label, label[:PADDED]]).astype(np.int32)
    weight = np.array([1.0] * REAL + [0.0] * PADDED, np.float32)
    return {"x": np.zeros((len(ids), 3), np.float32), "label": ids, WEIGHT: weight}


def embeddings(seed: int) -> tuple[Rows, Rows]:
    """Returns embeddings of real rows, and the same followed by padding of NaN."""
    real = np.random.default_rng(seed).normal(size=(REAL, SIZE)).astype(np.float32)
    return real, np.concatenate([real, np.full((PADDED, SIZE), np.nan, np.float32)])


def labels() -> Rows:
    """Returns labels of which one occurs once."""
    return np.array([0, 1, 0, 2, 1, 0, 2, 2, 7])


def unit(x: Rows) -> Rows:
    return x.astype(np.float64) / np.linalg.norm(x, axis=-1, keepdims=True)


def nats(scores: Rows, position: int) -> float:
    return float(np.log(np.exp(scores - scores[position]).sum()))


def mean_loss(task: Task, outputs: Any, batch: dict[str, Rows]) -> float:
    loss_b = task.loss(OPS, outputs, batch)
    assert loss_b.shape == (REAL + PADDED,)
    assert loss_b.dtype == np.float32
    assert not loss_b[REAL:].any()
    return float(loss_b[:REAL].mean())


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_in_batch_softmax_is_a_cross_entropy_over_the_candidates(
    normalize: bool, symmetric: bool, shared: bool
) -> None:
    (query, queries), (candidate, candidates) = embeddings(1), embeddings(2)
    batch = batch_of(labels())
    options: dict[str, Any] = {"candidate_id": "label"} if shared else {}
    made = config("pairs", inputs=["x"], symmetric=symmetric, normalize=normalize, temperature=0.5, **options)
    task = make_task(made, {"x": X, "label": LABEL})
    q, c = (unit(query), unit(candidate)) if normalize else (query.astype(np.float64), candidate.astype(np.float64))
    expected = []
    for row in range(REAL):
        kept = [i for i in range(REAL) if i == row or not shared or labels()[i] != labels()[row]]
        towers = [nats(c[kept] @ q[row] / 0.5, kept.index(row))]
        if symmetric:
            towers.append(nats(q[kept] @ c[row] / 0.5, kept.index(row)))
        expected.append(np.mean(towers))
    assert mean_loss(task, (queries, candidates), batch) == pytest.approx(np.mean(expected), rel=2e-6)
    by_name = {"other": queries, "query": queries, "candidate": candidates}
    assert mean_loss(task, by_name, batch) == pytest.approx(np.mean(expected), rel=2e-6)


@pytest.mark.parametrize("loss", ["supervised_contrastive", "n_pairs"])
def test_a_softmax_over_labels_equals_its_definition(loss: str) -> None:
    real, padded = embeddings(3)
    y = labels()
    scores = unit(real) @ unit(real).T / 0.3
    expected = []
    for row in range(REAL):
        others = [i for i in range(REAL) if i != row or loss == "n_pairs"]
        positives = [i for i in others if y[i] == y[row]]
        terms = [nats(scores[row, others], others.index(positive)) for positive in positives]
        expected.append(np.mean(terms) if terms else 0.0)
    task = make_task(config("pairs", loss=loss, temperature=0.3), {"x": X, "label": LABEL})
    assert mean_loss(task, padded, batch_of(y)) == pytest.approx(np.mean(expected), rel=2e-6)


@pytest.mark.parametrize("distance", ["euclidean", "squared_euclidean", "cosine"])
@pytest.mark.parametrize("kind", ["contrastive", "semi_hard", "hard", "all"])
def test_a_loss_of_distances_equals_its_definition(kind: str, distance: str) -> None:
    real, padded = embeddings(4)
    y = labels()
    e = unit(real)
    squared = ((e[:, None] - e[None]) ** 2).sum(-1)
    between = {"euclidean": np.sqrt(squared), "squared_euclidean": squared, "cosine": 0.5 * squared}[distance]
    terms: list[float] = []
    for a in range(REAL):
        positives = [between[a, i] for i in range(REAL) if i != a and y[i] == y[a]]
        negatives = [between[a, i] for i in range(REAL) if y[i] != y[a]]
        if kind == "contrastive":
            terms += [d**2 for d in positives] + [max(0.7 - d, 0.0) ** 2 for d in negatives]
        elif kind == "hard" and positives:
            terms.append(max(max(positives) - min(negatives) + 0.7, 0.0))
        elif kind == "all":
            terms += [max(p - n + 0.7, 0.0) for p in positives for n in negatives]
        elif kind == "semi_hard":
            for p in positives:
                farther = [n for n in negatives if n > p]
                terms.append(max(p - (min(farther) if farther else max(negatives)) + 0.7, 0.0))
    options = {"loss": "contrastive"} if kind == "contrastive" else {"loss": "triplet", "mining": kind}
    task = make_task(config("pairs", distance=distance, margin=0.7, **options), {"x": X, "label": LABEL})
    assert mean_loss(task, padded, batch_of(y)) == pytest.approx(np.mean(terms), rel=2e-5)


def test_a_batch_without_pairs_has_no_loss() -> None:
    _, padded = embeddings(5)
    for y in (np.arange(REAL), np.zeros(REAL, int)):
        for mining in ("semi_hard", "hard", "all"):
            task = make_task(config("pairs", loss="triplet", mining=mining), {"x": X, "label": LABEL})
            assert mean_loss(task, padded, batch_of(y)) == 0.0
            assert task.summary(task.totals(OPS, padded, batch_of(y)))["top_1"] == (0.0 if y.any() else 1.0)


def test_the_metrics_count_rows_whose_match_is_among_the_nearest() -> None:
    (query, queries), (candidate, candidates) = embeddings(6), embeddings(7)
    task = make_task(config("pairs", inputs=["x"], top_k=3), {"x": X, "label": LABEL})
    scores = unit(query) @ unit(candidate).T
    ranks = [int((np.delete(scores[i], i) >= scores[i, i]).sum()) for i in range(REAL)]
    batch = batch_of(labels())
    expected = {f"top_{k}": np.mean([rank < k for rank in ranks]) for k in (1, 3)}
    assert task.summary(task.totals(OPS, (queries, candidates), batch)) == pytest.approx(expected)
    values = task.metrics(OPS, (queries, candidates), batch)
    assert {name: value[:REAL].mean() for name, value in values.items()} == pytest.approx(expected)
    same = np.ones_like(queries)
    assert task.summary(task.totals(OPS, (same, same), batch)) == {"top_1": 0.0, "top_3": 0.0}


@pytest.mark.parametrize("loss", ["supervised_contrastive", "triplet"])
def test_the_report_looks_for_matches_in_the_whole_split(loss: str) -> None:
    real, _ = embeddings(8)
    y = labels()
    specs = {"x": X, "label": LABEL}
    task = make_task(config("pairs", loss=loss), specs)
    source = ArraySource({"x": np.zeros((REAL, 3), np.float32), "label": y.astype(np.int32)}, specs)
    distances = ((unit(real)[:, None] - unit(real)[None]) ** 2).sum(-1) + 10 * np.eye(REAL)
    is_hit = [y[i] == y[np.argmin(distances[i])] for i in range(REAL) if (y == y[i]).sum() > 1]
    report = task.report(Evaluation({LOSS: 0.0}, REAL, {}, real), source)
    ((title, (_, rows)),) = report.tables.items()
    assert title == "8 test examples, each among 8 of the whole split"
    assert rows[0] == (1, round(float(np.mean(is_hit)), 4))


def test_the_report_of_two_outputs_counts_each_candidate_once() -> None:
    (query, _), (candidate, _) = embeddings(9), embeddings(10)
    y = np.array([0, 1, 2, 3, 4, 5, 0, 1, 0])
    candidate = candidate[y]
    specs = {"x": X, "label": LABEL}
    task = make_task(config("pairs", inputs=["x"], candidate_id="label"), specs)
    source = ArraySource({"x": np.zeros((REAL, 3), np.float32), "label": y.astype(np.int32)}, specs)
    scores = unit(query) @ unit(candidate[:6]).T
    evaluation = Evaluation({LOSS: 0.0}, REAL, {}, np.zeros(0), {"query": query, "candidate": candidate})
    ((title, (_, rows)),) = task.report(evaluation, source).tables.items()
    assert "each among 6" in title
    assert rows[0] == (1, round(float(np.mean(scores.argmax(1) == y)), 4))


@pytest.mark.parametrize(
    ("options", "shapes", "told"),
    [
        ({}, {"outputs": (None, 4)}, "the model has one output, but task.loss=in_batch_softmax compares two"),
        ({}, {"a": (None, 4), "b": (None, 5)}, "output a has 4 numbers and output b 5"),
        (
            {"query": "c"},
            {"a": (None, 4), "b": (None, 4)},
            "task.query=c: the model has no output 'c' (its outputs: a, b)",
        ),
        ({"query": "b"}, {"a": (None, 4), "b": (None, 4)}, "task.candidate=b: must be another output"),
        ({"loss": "triplet"}, {"outputs": (None, 3, 4)}, "must be [batch, size], one embedding per row"),
        ({"loss": "triplet", "units": 5}, {"outputs": (None, 4)}, "must be [batch, 5]"),
        ({"loss": "triplet"}, {"a": (None, 4), "b": (None, 4)}, "takes one embedding per row; return one"),
    ],
)
def test_models_of_other_outputs_are_rejected(
    options: dict[str, Any], shapes: dict[str, tuple[int | None, ...]], told: str
) -> None:
    task = make_task(config("pairs", **options), {"x": X, "label": LABEL})
    check = partial(task.check, shapes["outputs"]) if len(shapes) == 1 else partial(task.check_named, shapes)
    with pytest.raises(ConfigError) as rejected:
        check()
    assert told in str(rejected.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"targets": ["label"]}, "task.target=label: task.loss=in_batch_softmax has no labels"),
        (
            {"candidate_id": "lable"},
            "task.candidate_id=lable: the dataset has no array 'lable' (its arrays: x, label)",
        ),
        ({"candidate_id": "x"}, "task.candidate_id=x: must be an array of one integer per example"),
        ({"loss": "triplet", "targets": ["x"], "inputs": ["x"]}, "task.target=x: must be an array of one integer"),
        ({"loss": "triplet", "inputs": ["x"]}, "every example of the train split has a label of its own"),
    ],
)
def test_arrays_without_pairs_are_rejected(options: dict[str, Any], told: str) -> None:
    specs = {"x": X, "label": LABEL}
    train = ArraySource({"x": np.zeros((4, 3), np.float32), "label": np.arange(4, dtype=np.int32)}, specs)
    with pytest.raises(ConfigError) as rejected:
        make_task(config("pairs", **options), specs, train)
    assert told in str(rejected.value)
