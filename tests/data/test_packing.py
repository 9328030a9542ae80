import numpy as np
import pytest

from runner.data import packing
from runner.data.base import in_memory
from runner.data.packing import PackedSequences

DOCUMENTS = ([1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [12, 13])


def source(length: int, *, apart: bool, documents=DOCUMENTS) -> PackedSequences:
    starts = np.cumsum([0, *(len(one) for one in documents)])[:-1]
    return PackedSequences(np.concatenate([np.array(one, np.uint8) for one in documents]), starts, length, apart)


def by_hand(length: int) -> dict[str, np.ndarray]:
    """The same, a token at a time."""
    tokens = [token for one in DOCUMENTS for token in one]
    document = [number for number, one in enumerate(DOCUMENTS) for _ in one]
    rows = -(-(len(tokens) - 1) // length)
    made = {name: np.zeros((rows, length)) for name in ("tokens", "label", "segments", "label_weight")}
    for place, token in enumerate(tokens[: rows * length]):
        row, column = divmod(place, length)
        made["tokens"][row, column] = token
        made["segments"][row, column] = document[place] - document[row * length] + 1
        if place + 1 < len(tokens):
            made["label"][row, column] = tokens[place + 1]
            made["label_weight"][row, column] = document[place] == document[place + 1]
    return made


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 12, 13, 40])
def test_documents_have_segments_and_no_label_crosses_them(length):
    kept = source(length, apart=True)
    found, wanted = kept.read(np.arange(kept.size)), by_hand(length)
    assert set(found) == set(wanted) == set(kept.specs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert str(found[name].dtype) == kept.specs[name].dtype


@pytest.mark.parametrize("apart", [True, False])
def test_rows_are_read_in_any_order_and_as_often_as_wanted(apart):
    kept = source(3, apart=apart)
    whole, rows = kept.read(np.arange(kept.size)), np.array([3, 0, 3, 1])
    for name, array in kept.read(rows).items():
        np.testing.assert_array_equal(array, whole[name][rows])


def test_joined_documents_leave_out_what_does_not_fill_a_sequence():
    kept = source(5, apart=False)  # 13 tokens: 12 that have a next one
    assert kept.size == 2
    found = kept.read(np.arange(2))
    assert found["tokens"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert found["label"].tolist() == [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]


@pytest.mark.parametrize("apart", [True, False])
def test_sequences_in_memory_equal_those_read_from_disk(apart):
    kept = source(3, apart=apart)
    held = in_memory(kept, packing.RAM_BYTES, 2)
    rows = np.arange(kept.size)
    for name, array in kept.read(rows).items():
        np.testing.assert_array_equal(held.column(name), array)
    assert in_memory(kept, 1, 2) is kept
