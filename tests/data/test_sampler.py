import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.data.base import Draw
from runner.data.sampler import Plan, eval_plan, steps_in_epoch, train_plan

sizes = st.integers(1, 200)
batch_sizes = st.integers(1, 64)


def same(first: Plan, second: Plan) -> bool:
    return all(np.array_equal(getattr(first, key), getattr(second, key)) for key in ("indices", "weights"))


@given(size=sizes, seed=st.integers(0, 2**32), epoch=st.integers(0, 1000))
def test_the_order_is_a_permutation_that_seed_and_epoch_determine(size: int, seed: int, epoch: int) -> None:
    order = Draw(seed, epoch, True).order(size)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))
    assert np.array_equal(order, Draw(seed, epoch, True).order(size))


@given(size=sizes, batch_size=batch_sizes, remainder=st.sampled_from(["drop", "pad"]), data=st.data())
def test_an_epoch_resumed_at_a_step_gives_the_batches_that_were_left(
    size: int, batch_size: int, remainder: str, data: st.DataObject
) -> None:
    total = steps_in_epoch(size, batch_size, remainder)
    start = data.draw(st.integers(0, total))
    options = {"batch_size": batch_size, "seed": 3, "epoch": 2, "remainder": remainder}
    whole = train_plan(size, **options)
    rest = train_plan(size, start_step=start, **options)
    assert whole.steps == total
    assert same(Plan(whole.indices[start:], whole.weights[start:]), rest)


@given(size=sizes, batch_size=batch_sizes)
def test_dropping_trains_on_whole_batches_and_padding_on_every_example_once(size: int, batch_size: int) -> None:
    options = {"batch_size": batch_size, "seed": 0, "epoch": 0}
    dropped = train_plan(size, remainder="drop", **options)
    assert dropped.steps == size // batch_size
    assert dropped.weights.sum() == dropped.steps * batch_size
    assert len(np.unique(dropped.indices)) == dropped.indices.size
    padded = train_plan(size, remainder="pad", **options)
    assert padded.indices.shape == (-(-size // batch_size), batch_size)
    assert sorted(padded.indices[padded.weights == 1].tolist()) == list(range(size))
    assert padded.indices[padded.weights == 0].tolist() == [0] * (padded.indices.size - size)


def test_steps_and_limit_shorten_but_never_lengthen() -> None:
    options = {"batch_size": 10, "seed": 0, "epoch": 0}
    assert train_plan(100, steps=3, **options).steps == 3
    assert train_plan(100, steps=3, start_step=2, **options).steps == 1
    assert train_plan(100, steps=3, start_step=5, **options).steps == 0
    assert train_plan(100, steps=30, **options).steps == 10
    assert eval_plan(100, 30, limit=2).weights.sum() == 60
    assert eval_plan(100, 30, limit=9).weights.sum() == 100


def test_rows_past_the_examples_of_a_batch_are_padding() -> None:
    plan = eval_plan(7, 5, rows=8)
    assert plan.indices.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], [5, 6, 0, 0, 0, 0, 0, 0]]
    assert plan.weights.tolist() == [[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
