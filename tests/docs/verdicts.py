"""What the tables of verified models show of a verdict: a short status, a short note, and the whole line below."""

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
    "ImageProjectiveTransformV3": "DTensor has no rule for ImageProjectiveTransformV3; use engine=jax",
    "the model raised TypeError": "the model raises a TypeError",
    "which KerasHub has no public name for": "a part of it has no public name in KerasHub",
}
# Where an error line repeats the builder, and the whole config that it was called with.
_BUILDER = re.compile(r"^(?:error: )?model\._target_=\S+: ")
_CONFIG = re.compile(r"; it was given model\.\w+=.*$")
DETAILS = "## Full results"
# Note of a line that has no other.
UNKNOWN = "see the full results"


def status(verdict: str) -> str:
    """Returns the short status of a verdict, such as `not supported`."""
    return _STATUSES.get(verdict, verdict)


def note(line: str) -> str:
    """Returns the note of a verdict's line: what it detects, or in a few words why it is not verified."""
    insensitive = _NOT_SENSITIVE.search(line)
    if insensitive:
        return f"not sensitive: {insensitive[1]}"
    detects = _DETECTS.search(line)
    if detects:
        return f"detects errors of {detects[1]} or more"
    for part, short in _NOTES.items():
        if part in line:
            return short
    return UNKNOWN if line else ""


def plain(line: str) -> str:
    """Returns a verdict's line without the builder's path and without the config that the builder was called with."""
    return _CONFIG.sub("", _BUILDER.sub("", line)).removeprefix("error: ").replace("\\|", "|")


def details(page: str) -> dict[str, str]:
    """Returns key -> line of the full results of a page."""
    _, _, below = page.partition(f"\n{DETAILS}\n")
    return dict(re.findall(r"^- `([^`]+)`: (.+)$", below, flags=re.M))
