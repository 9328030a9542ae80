"""Texts in quotes come back from Hydra's grammar as they were."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from runner.config.quoting import quoted, unquoted

# `$` begins an interpolation, which no quotes hide.
TEXTS = st.text(st.sampled_from("ab/@ ,=[]{}\"'\\"), min_size=1, max_size=8)


@given(text=TEXTS)
@example(text="/home/ann@work/Ann's runs")
@example(text="a\\'b")
@example(text="a\\")
def test_a_quoted_text_is_read_as_it_was(text: str) -> None:
    override = OverridesParser.create().parse_override(f"run={quoted(text)}")
    assert override.value() == text
    assert unquoted(quoted(text)) == text


def test_a_value_without_quotes_stays() -> None:
    assert [unquoted(value) for value in ("latest", "", "'", '"a b"', " x ")] == ["latest", "", "'", "a b", "x"]
