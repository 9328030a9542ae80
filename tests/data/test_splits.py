import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data.splits import Slice, parse_split, resolve

SIZES = {"train": 1000, "test": 33}


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("train", [("train", 0, 1000)]),
        ("train[:50]", [("train", 0, 50)]),
        ("train[10%:]", [("train", 100, 1000)]),
        ("train[-100:]", [("train", 900, 1000)]),
        ("train[:-10%]", [("train", 0, 900)]),
        ("train[:5_0]", [("train", 0, 50)]),
        ("test[:50%]", [("test", 0, 16)]),
        ("train[:50%] + test[20:30]", [("train", 0, 500), ("test", 20, 30)]),
        ("all", [("train", 0, 1000), ("test", 0, 33)]),
    ],
)
def test_expressions_select_the_ranges_that_they_name(text: str, ranges: list[tuple[str, int, int]]) -> None:
    assert resolve(parse_split(text), SIZES) == ranges


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a split"),
        ("train+", "is not a split"),
        ("train[5]", "is not a split"),
        ("train[:5", "is not a split"),
        ("train[::2]", "is not a split"),
        ("train[:]", "has no bound, and the whole split is train"),
        ("train[:1.5]", "'1.5'"),
        ("train[:2shard]", "'2shard'"),
        ("train[10%:50]", "mixes counts and percents"),
        ("train[:101%]", "between -100% and 100%"),
        ("all[:5]", "all can't be sliced, but a sum of splits can"),
    ],
)
def test_an_invalid_expression_is_rejected_with_the_syntax(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_split(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_terms_keep_their_order_and_unit() -> None:
    assert parse_split("test[1:2]+train[5%:]") == (Slice("test", 1, 2), Slice("train", 5.0, None, percent=True))


def _written(bound: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    whole = st.sampled_from(["train", "test"])
    optional = st.one_of(st.just(""), bound)
    sliced = st.tuples(whole, optional, optional).filter(lambda term: bool(term[1] or term[2]))
    return st.one_of(whole, sliced.map(lambda term: f"{term[0]}[{term[1]}:{term[2]}]"))


_counts = st.integers(-300, 300).map(str)
_percents = st.one_of(st.integers(-100, 100), st.integers(-1000, 1000).map(lambda tenths: tenths / 10))
_terms = st.one_of(_written(_counts), _written(_percents.map(lambda percent: f"{percent}%")))


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(terms=st.lists(_terms, min_size=1, max_size=3), train=st.integers(1, 300), test=st.integers(1, 300))
def test_every_expression_selects_what_tfds_selects(terms: list[str], train: int, test: int) -> None:
    import tensorflow_datasets as tfds

    sizes, text = {"train": train, "test": test}, "+".join(terms)
    infos = {name: tfds.core.SplitInfo(name=name, shard_lengths=[n], num_bytes=0) for name, n in sizes.items()}
    try:
        theirs = [
            (cut.splitname, cut.from_ or 0, sizes[cut.splitname] if cut.to is None else cut.to)
            for cut in tfds.core.ReadInstruction.from_spec(text).to_absolute(infos)
        ]
    except ValueError:
        theirs = None
    if theirs is None or any(start >= stop for _, start, stop in theirs):
        with pytest.raises(ValueError, match=r"bound|nothing"):
            resolve(parse_split(text), sizes)
    else:
        assert resolve(parse_split(text), sizes) == theirs
