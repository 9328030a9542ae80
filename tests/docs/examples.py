"""examples/: the example pages as folders that run, one per page.

`python -m tests.docs.examples` writes them again; a test compares them with the pages. The test that follows a page
runs the same files and commands.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.docs import pages

FOLDER = pages.ROOT / "examples"
PAGES = ("regression", "multilabel", "photographs", "own_dataset", "own_loss")


def contents(page: str) -> dict[str, str]:
    """Returns name -> text of the files of a page's folder."""
    title = pages.path_of(page).read_text().partition("\n")[0].removeprefix("# ")
    lines = ["#!/bin/sh", f"# {title}: docs/{page}.md explains each step.", "set -e", 'cd "$(dirname "$0")"']
    for kind, text in pages.blocks(page):
        if kind == "sh":
            lines += ["", text.rstrip()]
    readme = [
        f"# {title}",
        "",
        f"These are the files and commands of [docs/{page}.md](../../docs/{page}.md), which explains them.",
        "Install the runner, then run all steps with `sh run.sh`. They take minutes on a laptop.",
        "",
    ]
    return {**pages.files(page), "run.sh": "\n".join(lines) + "\n", "README.md": "\n".join(readme)}


def written(folder: Path) -> dict[str, str]:
    """Returns name -> text of the files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def main() -> None:
    """Writes the folders."""
    for page in PAGES:
        folder = FOLDER / page
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in contents(page).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


if __name__ == "__main__":
    main()
