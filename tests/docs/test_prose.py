"""The language of the pages: short sentences, standard terms, and no old or private words."""

from statistics import mean

import pytest

from tests.docs import pages, prose
from tests.docs.pages import ROOT

WRITTEN = [page for page in pages.names() if page not in prose.GENERATED]


@pytest.mark.parametrize("page", WRITTEN)
def test_sentences_are_short(page: str) -> None:
    found = prose.sentences(page)
    assert [one for one in found if len(one.split()) > prose.LONGEST] == []
    if found:
        assert mean(len(one.split()) for one in found) <= prose.AVERAGE


@pytest.mark.parametrize("page", pages.names())
def test_pages_have_no_private_words(page: str) -> None:
    assert prose.private_words(prose.written(page)) == []


def test_options_have_no_private_words() -> None:
    found = {path.name: prose.private_words(path.read_text()) for path in (ROOT / "conf").rglob("*.yaml")}
    assert {name: words for name, words in found.items() if words} == {}


def test_each_standard_term_is_on_a_page() -> None:
    text = " ".join(" ".join(pages.path_of(page).read_text().split()) for page in WRITTEN).lower()
    assert [term for term in prose.STANDARD_TERMS if term.lower() not in text] == []
