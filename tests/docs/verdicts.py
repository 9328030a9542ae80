"""What the tables of verified models and backbones show of a verdict, in a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Verdicts that have another name on the pages.
_STATUSES = {"refused": "not supported", "differs": "mismatch"}
_NOT_SENSITIVE = re.compile(r"; not sensitive: ([\w/]+) \(")
_DETECTS = re.compile(r"\(detects errors of (\S+%) or more\)")
# Part of an error line -> a note of at most twelve words.
_NOTES: Mapping[str, str] = {
    "nothing of features of each example": "no features per example that a head could use",
    "is a stateful RNN": "stateful RNN; set stateful=False",
    "ImageProjectiveTransformV3": "DTensor has no rule for ImageProjectiveTransformV3",
    "the model raised TypeError": "the model raises a TypeError",
    "which KerasHub has no public name for": "a part of it has no public name in KerasHub",
}


def cell(verdict: str, line: str) -> str:
    """Returns the smallest error that a verification detects, or another verdict and its note.

    Args:
      verdict: such as `verified`.
      line: the verdict's line, or the error.
    """
    detects = _DETECTS.search(line)
    if verdict == "verified" and detects:
        return detects[1]
    status = _STATUSES.get(verdict, verdict)
    if insensitive := _NOT_SENSITIVE.search(line):
        return f"{status}: {insensitive[1]}"
    notes = [note for part, note in _NOTES.items() if part in line]
    return f"{status}: {notes[0]}" if notes else status
