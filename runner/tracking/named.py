"""The rule by which a person names a recorded run."""

from __future__ import annotations

from collections.abc import Mapping

# The newest run; who looks for one decides among which.
LATEST = "latest"


def named(text: str, names: Mapping[str, str]) -> str:
    """Returns the id of the run that a text names, given run ids and names, newest first.

    A complete id comes before a name, of which the newest run counts, and a name before the start of an id.

    Raises:
      LookupError: no run matches, or several ids have this start; its text says which.
    """
    by_start = [run_id for run_id in names if text and run_id.startswith(text)]
    if text in by_start:
        return text
    for run_id, name in names.items():
        if name == text:
            return run_id
    if len(by_start) == 1:
        return by_start[0]
    raise LookupError("several run ids start with this" if by_start else "no run has this id or name")
