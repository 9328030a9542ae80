"""Quoted values of overrides, as Hydra's grammar reads them."""

from __future__ import annotations

import re

from hydra.core.override_parser.types import Quote, QuotedString


def quoted(text: str) -> str:
    r"""Returns a text in single quotes, whatever characters it has.

    >>> print(quoted("Ann's runs"), quoted("a\\b"))
    'Ann\'s runs' 'a\b'
    """
    return QuotedString(text, Quote.single).with_quotes()


def unquoted(value: str) -> str:
    r"""Returns the text of a value, which may be in quotes.

    >>> print(unquoted(r"'Ann\'s runs'"), unquoted("latest"))
    Ann's runs latest
    """
    text = value.strip()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return text
    return re.sub(rf"(\\+)({text[0]}|\Z)", lambda match: match[1][: len(match[1]) // 2] + match[2], text[1:-1])
