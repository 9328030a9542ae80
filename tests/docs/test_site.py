"""The site: each page has one place in it, it builds without a warning, opens from a folder, and its search works."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs import pages, site

# Terms that a visitor types, and the page that search must list first.
SEARCHES = {
    "gradient accumulation": "gradient_accumulation",
    "mixed precision": "mixed_precision",
    "early stopping": "training",
    "learning rate": "learning_rate",
    "optimizers": "optimizers",
    "tensor parallel": "layouts",
    "tensor parallelism": "layouts",
    "FSDP": "layouts",
    "multi-node": "several_processes",
    "multi-GPU": "gpus",
    "resume": "checkpoints",
    "hyperparameter search": "sweeps",
    "Python API": "api",
    "benchmarks": "benchmarks",
    "out of memory": "fit_in_memory",
    "MirroredStrategy": "coming_from",
    "Slurm": "slurm",
    "LoRA": "fine_tune",
    "quickstart": "quickstart",
    "reproducibility": "reproducibility",
    "mutation testing": "campaigns",
    "resume on another number of hosts": "resume_other_hosts",
    "preemptions several MLflow runs": "one_mlflow_run",
    "resume a Hydra sweep": "resume_sweeps",
    "weights never exist as a whole": "weights_never_whole",
    "gradient accumulation equal full batch": "accumulation_equals_batch",
    "metrics of each process": "metrics_per_process",
    "shard any Keras or KerasHub model": "shard_any_model",
    "one MLflow run across preemptions": "one_mlflow_run",
    "common questions": "questions",
}
# Pages whose list items give other pages their place.
LISTINGS = (*site.SECTIONS, *site.OVERVIEWS)
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


def test_each_page_has_one_place_in_the_navigation() -> None:
    listed = Counter(page for listing in LISTINGS for page in site.entries(listing))
    every = {path.stem for path in site.DOCS.glob("*.md")} | set(site.TOP)
    assert {page: count for page, count in listed.items() if count > 1} == {}
    assert set(listed) == every - {"index", *site.SECTIONS}


def test_a_list_item_names_its_page_by_its_title() -> None:
    for listing in LISTINGS:
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


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "fetches https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "fetches //cdn.example/x.png"),
        ('<link rel="stylesheet" href="https://cdn.example/x.css">', "fetches https://cdn.example/x.css"),
        ('<a href="none.html">x</a>', "no such target: none.html"),
        ('<a href="#none">x</a>', "no such target: #none"),
        ('<a href="b.html#none">x</a>', "no such target: b.html#none"),
        ('<a href="b.html#one">x</a><a href="#">top</a><a href="https://keras.io/guides/">a link</a>', None),
        (
            '<a href="https://cdn.example">a link</a>',
            "https://cdn.example: host cdn.example is not in HOSTS of tests/docs/links.py",
        ),
    ],
)
def test_broken_links_and_other_hosts_are_found(html: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h1 id="one">b</h1>')
    found = site.problems(tmp_path)
    assert found == ([f"a.html: {problem}"] if problem else [])


def test_a_stylesheet_that_fetches_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/x.css';")
    (tmp_path / "b.css").write_text("a { background: url(x.png) }")
    assert site.problems(tmp_path) == ["a.css: fetches from another host"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the built site."""
    missing = [
        name for name in ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton") if not find_spec(name)
    ]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install -c constraints.txt -e '.[docs]'")
    return site.build(tmp_path_factory.mktemp("site"))


@pytest.mark.nightly
def test_the_site_builds_strictly_and_its_links_have_targets(built: Path) -> None:
    assert site.problems(built) == []
    lines = list(site.index_for_models(built))
    assert "- [Layouts](_sources/layouts.md)" in lines


def _answers(status: int) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # linkcheck asks with HEAD first, which this server does not know
            self.send_response(status if self.path == "/page" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.mark.slow
def test_links_that_have_no_answer_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("myst_parser")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _answers(200)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"

        def stage(folder: Path) -> None:
            (folder / "conf.py").write_text('extensions = ["myst_parser"]\nroot_doc = "index"\n')
            (folder / "index.md").write_text(f"# A page\n\n[One]({host}/page), [other]({host}/none).\n")

        monkeypatch.setattr(site, "stage", stage)
        (line,) = site.dead_links(tmp_path / "build")
        server.shutdown()
    assert line.startswith(f"index.md: {host}/none: 404 ")


@pytest.mark.nightly
def test_the_api_pages_show_docstrings(built: Path) -> None:
    text = (built / "api.html").read_text()
    for name in ("runner.compose", "runner.train", "runner.data.base.DataSource.read", "runner.task.base.Task.loss"):
        assert f'id="{name}"' in text


@pytest.fixture
def browser_page() -> Any:
    """Yields a page of Chromium, without a network."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=_FLAGS)
        context = browser.new_context(offline=True, viewport={"width": 400, "height": 900})
        page = context.new_page()
        page.set_default_timeout(120_000)
        yield page
        browser.close()


@pytest.mark.nightly
def test_search_from_a_folder_lists_the_right_page_first(built: Path, browser_page: Any) -> None:
    first = {}
    for term in SEARCHES:
        browser_page.goto(f"{(built / 'search.html').as_uri()}?q={term}")
        link = browser_page.locator("#search-results ul.search li a").first
        first[term] = Path(link.get_attribute("href").partition("?")[0].partition("#")[0]).stem
    assert first == SEARCHES


@pytest.mark.nightly
@pytest.mark.parametrize("width", [400, 1400], ids=["phone", "desktop"])
def test_no_page_is_wider_than_its_window_or_fetches_from_another_host(
    built: Path, browser_page: Any, width: int
) -> None:
    browser_page.set_viewport_size({"width": width, "height": 900})
    asked = []
    browser_page.on("request", lambda request: asked.append(request.url))
    wide = {}
    for page in ("index", "install", "layouts", "layers", "reference", "api", "bugs"):
        browser_page.goto((built / f"{page}.html").as_uri())
        needed = browser_page.evaluate("document.documentElement.scrollWidth")
        if needed > width:
            wide[page] = needed
    assert wide == {}
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
