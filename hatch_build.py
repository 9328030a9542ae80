"""The long description of the distributions: README.md without links to files of this folder.

Package indexes resolve relative links against their own pages, so each would be dead. The project has no public
address that they could become; their texts stay. Hatchling calls this.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[([^\]]*)\]\((?!\w+://)[^)]*\)$", flags=re.M)
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+://)[^)]*\)")
_NOTE = "The pages that are named here are in the folder `docs` of the source distribution.\n"


def description(readme: str) -> str:
    """Returns a Markdown text whose relative links are plain text, and whose pictures are their descriptions."""
    text = _PICTURE.sub(r"*\1.*", readme)
    text = _LINK.sub(r"\1", text)
    return text + "\n" + _NOTE


class Description(MetadataHookInterface):
    """Sets `project.readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Replaces the readme in a table of `project` in place."""
        readme = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme)}
