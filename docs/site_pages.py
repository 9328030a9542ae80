"""Sphinx extension of the site: descriptions of pages, output that may wrap, and results of a search by content.

Sphinx finds the pages that have a word and knows no more of it than whether the word is in a title. The weights here
(BM25) say how much a page is about it; `_static/search_scores.js` adds them to the results.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search.en import SearchEnglish

# Usual values of BM25: how soon one more mention stops to count, and how much a long page's mentions count less.
SATURATION, LENGTH = 1.6, 0.5
# How many mentions one in a page's title counts as, in a section's title or a keyword, and in the first paragraph.
IN_TITLE, IN_SECTION, IN_FIRST = 40, 12, 6
# Lists of what was tested and of changes mention everything and explain little.
LISTS = {
    "CHANGELOG": 0.1,
    "bugs": 0.6,
    "keras_examples": 0.6,
    "keras_hub_models": 0.6,
    "benchmarks": 0.6,
    "index": 0.6,
}
# Words of other tools, and names, that a page answers but hardly uses.
KEYWORDS = {
    "keras_hub": "llama, gemma, qwen, mistral, bert, huggingface, transformers",
    "mlflow": "wandb, tensorboard, comet, neptune",
    "own_dataset": "dataloader",
    "several_processes": "k8s, multinode, mpirun",
    "memory": "zero, cuda",
    "gpus": "gpus, gpu, multigpu",
    "sweeps": "hyperparameters, hpo, ray",
}
REFERENCE = 0.7  # a guide comes before the keys it explains
PAGES_PER_WORD = 8  # later results keep Sphinx's order
# A line of a table has columns, or the lines that draw one.
_COLUMNS = re.compile(r"\S {2,}\S|[│┃|─━═]{2}|\S [│┃|] ")


def first_paragraph(document: nodes.document) -> str:
    """Returns the first paragraph of a page, outside boxes and lists."""
    for paragraph in document.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            return " ".join(paragraph.astext().split())
    return ""


def mentions(document: nodes.document, stem: Callable[[str], str]) -> Counter[str]:
    """Returns how much a page says about each word, by its stem. The rows of a table or block are one mention."""
    document = document.deepcopy()
    found = Counter[str]()

    def add(words: Iterable[str], times: int) -> None:
        for word in words:
            found[stem(word)] += times

    for block in list(document.findall(lambda node: isinstance(node, nodes.table | nodes.literal_block))):
        add(set(_words(block)), 1)
        block.parent.remove(block)
    add(_words(document), 1)
    for position, title in enumerate(document.findall(nodes.title)):
        add(_words(title), IN_SECTION if position else IN_TITLE)
    add(re.findall(r"\w+", first_paragraph(document).lower()), IN_FIRST)
    for keywords in document.findall(nodes.meta):
        add(keywords["content"].split(", "), IN_TITLE)
    return found


def _words(node: nodes.Node) -> list[str]:
    return re.findall(r"\w+", node.astext().lower())


def weights(pages: dict[str, Counter[str]]) -> dict[str, dict[str, float]]:
    """Returns word -> page -> weight of the pages that say most about it (Robertson and Zaragoza, 2009)."""
    lengths = {page: found.total() for page, found in pages.items()}
    mean = sum(lengths.values()) / len(lengths)
    having = Counter(word for found in pages.values() for word in found)
    of_words: dict[str, dict[str, float]] = {}
    for page, found in pages.items():
        share = REFERENCE if page.startswith("reference") else LISTS.get(page, 1.0)
        damping = SATURATION * (1 - LENGTH + LENGTH * lengths[page] / mean)
        for word, times in found.items():
            rarity = math.log(1 + (len(pages) - having[word] + 0.5) / (having[word] + 0.5))
            of_words.setdefault(word, {})[page] = share * rarity * times * (SATURATION + 1) / (times + damping)
    return of_words


def rank(app: Sphinx, env: BuildEnvironment) -> None:
    """Writes the script that orders results, with the weights, and has Sphinx use it."""
    stem = SearchEnglish({}).stem
    found = {page: mentions(env.get_doctree(page), stem) for page in env.found_docs}
    table: dict[str, dict[str, float]] = {}
    for word, of_pages in weights(found).items():
        if len(of_pages) > 1 and not word.isdigit():
            best = sorted(of_pages, key=lambda page: -of_pages[page])[:PAGES_PER_WORD]
            table[word] = {page: round(10 * of_pages[page], 1) for page in best}
    scores = Path(app.confdir, "_static", "search_scores.js").read_text()
    script = Path(app.doctreedir, "search_scores.js")
    script.write_text(f"{scores}\nScorer.weights = {json.dumps(table, separators=(',', ':'), sort_keys=True)};\n")
    app.config.html_search_scorer = str(script)


def describe(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Gives a page its description, which search engines and link previews show."""
    if document is not None and (text := first_paragraph(document)):
        cut = text if len(text) <= 160 else text[:157].rpartition(" ")[0] + " ..."
        context["metatags"] += f'<meta name="description" content="{html.escape(cut)}" />\n'


def mark(app: Sphinx, document: nodes.document) -> None:
    """Adds a page's keywords, and marks output whose lines have columns: it scrolls, where other output wraps."""
    keywords = KEYWORDS.get(app.env.docname)
    if keywords:
        document.append(nodes.meta(name="keywords", content=keywords))
    for block in document.findall(nodes.literal_block):
        lines = block.astext().splitlines()
        if sum(bool(_COLUMNS.search(line.strip())) for line in lines) > 1:
            block["classes"].append("columns")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the handlers of events."""
    app.connect("doctree-read", mark)
    app.connect("env-updated", rank)
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True}
