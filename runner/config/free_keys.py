"""Overrides of mappings whose keys the user chooses, as Hydra takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Mappings whose keys the user chooses. In Hydra's config a key that is not there yet would be a mistake.
_FREE_MAPPINGS = ("mesh.axes", "layout.inputs", "tracking.tags")


def arranged(overrides: Sequence[str]) -> Iterator[str]:
    """Lets a command line name the axes of a mesh and the tags of a run freely.

    Yields:
      `mesh.axes={...}` as overrides that replace the axes, `mesh.axes.model=2` as one that sets or adds an axis.
    """
    for text in overrides:
        mapping = next((key for key in _FREE_MAPPINGS if text.startswith((f"{key}={{", f"{key}."))), None)
        if mapping is None:
            yield text
        elif text.startswith(f"{mapping}."):
            yield f"++{text}"
        else:
            yield f"~{mapping}"
            yield f"+{text}"
