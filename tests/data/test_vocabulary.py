import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from runner.data.vocabulary import Vocabulary
from tests.data.texts import END, tokenizer


def trained(end: str | None = END) -> Vocabulary:
    made = tokenizer(["the cat and the hat and the dog"] * 5, end=end)
    return Vocabulary(end, made.to_str())


VOCABULARIES = {"bytes": Vocabulary(), "bytes_end": Vocabulary(END), "bpe": trained()}


@pytest.mark.parametrize("kind", VOCABULARIES)
@settings(max_examples=50, deadline=None)
@given(text=st.text() | st.just(f"a {END} b"))
def test_text_is_had_back_exactly_and_its_bytes_are_counted(kind, text):
    vocabulary = VOCABULARIES[kind]
    tokens = vocabulary.encode(text)
    assert vocabulary.decode(tokens) == text
    assert vocabulary.token_bytes()[tokens].sum() == len(text.encode())
    assert vocabulary.end is None or vocabulary.end not in tokens


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_recorded_vocabulary_is_the_same(kind):
    vocabulary = VOCABULARIES[kind]
    found = Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert (found, found.sha256, found.size) == (vocabulary, vocabulary.sha256, vocabulary.size)


@pytest.mark.parametrize("byte_level", [True, False])
def test_a_token_that_ends_a_word_stands_for_a_blank_too(byte_level):  # as of CLIP and of GPT-1
    vocabulary = {"t": 0, "h": 1, "e</w>": 2, "he</w>": 3, "the</w>": 4}
    model = models.BPE(vocabulary, [("h", "e</w>"), ("t", "he</w>")], end_of_word_suffix="</w>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.ByteLevel() if byte_level else decoders.BPEDecoder("</w>")
    found = Vocabulary(None, made.to_str())
    assert found.token_bytes().tolist() == [1, 1, 2, 3, 4]
    assert found.token_bytes()[found.encode("the the the")].sum() == len("the the the ")


@pytest.mark.parametrize("has_decoder", [True, False])
def test_bytes_of_added_tokens_and_of_byte_level_ones_without_a_decoder_are_counted(has_decoder):
    made = tokenizers.Tokenizer.from_str(trained().tokenizer)
    made.add_tokens(["日本"])
    content = json.loads(made.to_str())
    content["decoder"] = content["decoder"] if has_decoder else None
    found = Vocabulary(END, json.dumps(content))
    text = "the 日本 café"
    assert found.token_bytes()[found.encode("日本")].tolist() == [6]
    assert found.token_bytes()[found.encode(text)].sum() == len(text.encode())


def test_a_written_tokenizer_neither_cuts_nor_pads():
    made = tokenizers.Tokenizer.from_str(trained().tokenizer)
    made.enable_truncation(2)
    made.enable_padding(length=64)
    found = Vocabulary(END, made.to_str())
    written = tokenizers.Tokenizer.from_str(found.tokenizer_json())
    assert (written.truncation, written.padding) == (None, None)
    assert written.encode("the cat and the dog").ids == found.encode("the cat and the dog").tolist()


def test_ends_of_documents_are_left_out_of_the_text_and_half_a_character_is_marked():
    vocabulary = Vocabulary(END)
    assert vocabulary.decode([104, 105, 256, 195]) == "hi\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"end_token": None},
        {"end_token": 3, "tokenizer": ""},
        {"end_token": None, "tokenizer": "no base64!"},
        {"end_token": None, "tokenizer": "aGVsbG8="},
        trained().to_json() | {"tokenizer": str(trained().to_json()["tokenizer"])[:400]},
    ],
)
def test_an_invalid_or_cut_off_recorded_vocabulary_is_an_error(content):
    with pytest.raises(ValueError, match="a vocabulary"):
        Vocabulary.from_json(content)
