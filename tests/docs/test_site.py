"""The site: each page has one place in it, and it builds without a warning."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import screenshots
from tests.docs import pages, site


def test_each_page_has_one_place_in_the_navigation() -> None:
    listed = Counter(page for listing in site.SECTIONS for page in site.entries(listing))
    every = {path.stem for path in site.DOCS.glob("*.md")} | set(site.TOP)
    assert {page: count for page, count in listed.items() if count > 1} == {}
    assert set(listed) == every - {"index", *site.SECTIONS}


def test_a_list_item_names_its_page_by_its_title() -> None:
    for listing in site.SECTIONS:
        text = pages.path_of(listing).read_text()
        for page in site.entries(listing):
            title = pages.path_of(page).read_text().partition("\n")[0].removeprefix("# ")
            assert f"- [{title}](" in text, f"{listing}: {page}"


def test_what_only_sphinx_reads_is_added_to_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "how_to.md"
    page.write_text('- [Text](text.md): x\n\n```sh title="Needs: a GPU"\nls\n```\n\n<!-- autoclass: a.B -->\n')
    monkeypatch.setattr(pages, "path_of", lambda _: page)
    text = site.staged("how_to")
    assert "```{toctree}\n:hidden:\n\ntext\n```" in text
    assert '```{code-block} sh\n:caption: "Needs: a GPU"\n\nls\n```' in text
    assert "```{eval-rst}\n.. autoclass:: a.B\n   :members:\n```" in text


def test_the_reference_is_one_page_per_group_without_a_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    split = site.reference_split()
    whole = pages.path_of("reference").read_text()
    rows = [line for line in whole.splitlines() if line.startswith("| `")]
    assert Counter(rows) == Counter(row for text in split.values() for row in text.splitlines() if row in set(rows))
    keys = re.findall(r"^- `([^`]+)`: (?:.*; )?default", whole, flags=re.M)
    assert keys == re.findall(r"^```\{confval\} (.*)$", "".join(split.values()), flags=re.M)
    assert (
        "```{confval} mesh.cpu_devices\n:type: integer, from 1 to 256\n:default: `8`\n\nmax" in split["reference_mesh"]
    )
    assert split["reference_mesh"].startswith("# Config group `mesh`\n")
    assert "- [`mesh`](reference_mesh.md)" in split["reference"]
    page = tmp_path / "x.md"
    anchors = ("mesh", "keras-metrics", "exit-codes")
    page.write_text(" ".join(f"[x](reference.md#{anchor})" for anchor in anchors))
    monkeypatch.setattr(pages, "path_of", lambda _: page)
    assert site.staged("x").split() == [
        "[x](reference_mesh.md)",
        "[x](reference_task.md#keras-metrics)",
        "[x](reference.md#exit-codes)",
    ]


def test_what_a_page_fetches_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "script.html").write_text('<script async src="https://host/x.js">')
    (tmp_path / "style.html").write_text('<link href="//host/x.css" rel="stylesheet">')
    (tmp_path / "link.html").write_text('<link rel="canonical" href="https://host/"><a href="https://host/">x</a>')
    (tmp_path / "other.css").write_text("a { background: url(https://host/x.png) }")
    assert sorted(site.fetching(tmp_path)) == ["other.css", "script.html", "style.html"]


# What is typed -> the title of the first result.
FOUND_FIRST = {
    "Adam": "Optimizers and learning rate",
    "csv": "Data",
    "llama": "KerasHub models and fine-tuning",
    "4 GPUs": "One machine with several GPUs (multi-GPU)",
    "wandb": "MLflow, TensorBoard and W&B",
    "sweep": "Sweeps and hyperparameter search",
    "trainer.epochs": "trainer.epochs",
}


@pytest.mark.nightly
def test_the_site_builds_strictly_fetches_nothing_and_is_found_and_read_in_a_browser(tmp_path: Path) -> None:
    for name in ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton"):
        pytest.importorskip(name, reason="needs the extra docs")
    done = site.sphinx("html", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    html = tmp_path / "site" / "html"
    assert site.fetching(html) == []
    assert (html / "404.html").is_file()
    assert all('name="description"' in (html / f"{page}.html").read_text() for page in ("index", "faq", "api"))
    if not any(map(shutil.which, screenshots._BROWSERS)):
        pytest.skip("needs a browser")
    with screenshots.browser_page(390, 800) as page:
        page.goto((html / "faq.html").as_uri())
        cut = "blocks => blocks.filter(block => block.scrollWidth > block.clientWidth + 1).length"
        assert page.eval_on_selector_all(".highlight-none pre", cut) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate("document.querySelector('#pst-search-dialog').showModal()")
        for typed, title in FOUND_FIRST.items():
            page.locator("#pst-search-dialog input").fill("")
            page.locator("#pst-search-dialog input").press_sequentially(typed)
            page.wait_for_timeout(1000)  # the theme waits for 0.3 s without a key
            assert page.locator("#search-results .search a").first.text_content() == title, typed
