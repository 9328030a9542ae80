"""Quoted values of overrides, as Hydra's grammar reads them."""

from __future__ import annotations

import re
import shlex

from hydra.core.override_parser.types import Quote, QuotedString


def quoted(text: str) -> str:
    r"""Returns a text in single quotes, whatever characters it has.

    >>> print(quoted("Ann's runs"), quoted("a\\b"))
    'Ann\'s runs' 'a\b'
    """
    return QuotedString(text, Quote.single).with_quotes()


def in_shell(text: str) -> str:
    """Returns a text as a shell takes it, in double quotes where that is enough: a value may have single ones."""
    if re.search(r'["$`!]|\\\\', text):  # what a shell reads within double quotes
        return shlex.quote(text)
    return f'"{text}"'


def unquoted(value: str) -> str:
    r"""Returns the text of a value, which may be in quotes.

    >>> print(unquoted(r"'Ann\'s runs'"), unquoted("latest"))
    Ann's runs latest
    """
    text = value.strip()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return text
    return re.sub(rf"(\\+)({text[0]}|\Z)", lambda match: match[1][: len(match[1]) // 2] + match[2], text[1:-1])
