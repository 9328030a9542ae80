"""examples/: examples of the pages as folders that run.

`python -m tests.docs.examples` writes them again; a test compares them with the pages.
"""

import shutil
from pathlib import Path

from tests.docs import pages

FOLDER = pages.ROOT / "examples"
# Folder -> page, and the heading of its section; empty: the whole page.
FOLDERS = {
    "regression": ("tasks", "### Example: Regression from a table"),
    "multilabel": ("tasks", "### Example: Multi-label classification"),
    "photographs": ("pipeline", "## Example: Image classification with augmentation"),
    "own_dataset": ("own_dataset", ""),
    "own_loss": ("own_loss", ""),
}


def contents(name: str) -> dict[str, str]:
    """Returns name -> text of the files of a folder."""
    page, heading = FOLDERS[name]
    title = (heading or pages.section(page, "").partition("\n")[0]).lstrip("# ").removeprefix("Example: ")
    lines = ["#!/bin/sh", f"# {title}: docs/{page}.md explains each step.", "set -e", 'cd "$(dirname "$0")"']
    for kind, text in pages.blocks(page, heading):
        if kind == "sh":
            lines += ["", text.rstrip()]
    readme = [
        f"# {title}",
        "",
        f"These are the files and commands of [docs/{page}.md](../../docs/{page}.md), which explains them.",
        "Install the runner, then run all steps with `sh run.sh`. They take minutes on a laptop.",
        "",
    ]
    return {**pages.files(page, heading), "run.sh": "\n".join(lines) + "\n", "README.md": "\n".join(readme)}


def written(folder: Path) -> dict[str, str]:
    """Returns name -> text of the files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def main() -> None:
    """Writes the folders."""
    for name in FOLDERS:
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        for file, text in contents(name).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)


if __name__ == "__main__":
    main()
