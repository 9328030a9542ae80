"""The documentation site: docs/, CHANGELOG.md and CONTRIBUTING.md as HTML that opens from a folder.

`python -m tests.docs.site` writes build/site and checks it; `python -m tests.docs.site serve` also serves it on
127.0.0.1. Sphinx is in the extra `docs`. No network is needed, to build the site or to read it.

`python -m tests.docs.site links` asks the other hosts for every page that is linked to, which needs a network.

The pages stay plain Markdown in one folder, which hosting sites show too. What only Sphinx needs is added to a copy:
each list item that begins with a link gives that page its place in the navigation, comments such as
`<!-- autofunction: name -->` become directives, the words after a fence become a caption, and the generated reference
becomes one page per config group.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.docs import links, pages
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "site"
# Pages of the header, in order. Each lists the pages of its section.
SECTIONS = ("get_started", "how_to", "concepts", "reference_pages")
# Pages of the top folder, which have their place in the site too.
TOP = ("CHANGELOG", "CONTRIBUTING")
_ENTRY = re.compile(r"^- \[[^\]]+\]\((?:\.\./)?([\w-]+)\.md\)", flags=re.M)
_GROUPS = "## Groups and keys\n"
_HEADING = re.compile(r"^### (.+)$", flags=re.M)
_TO_REFERENCE = re.compile(r"\]\(reference\.md#([\w-]+)\)")
_DIRECTIVE = re.compile(r"^<!-- (auto\w+): ([\w.]+) -->$", flags=re.M)
_CAPTION = re.compile(r'^```(sh|python|yaml|text) (?:title="([^"\n]+)"|([^\n]+))$', flags=re.M)
# Elements that fetch what they name, as opposed to links that a reader follows.
_FETCHES = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "script": "src",
    "source": "src",
}
# A `link` element only fetches with these relations.
_FETCHED_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch"}
_CSS_FETCH = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(https?:)?//", flags=re.I)


def entries(page: str) -> list[str]:
    """Returns the pages whose place in the navigation is below this page, in order."""
    return _ENTRY.findall(pages.path_of(page).read_text())


@functools.cache
def reference_split() -> dict[str, str]:
    """Returns page -> text of the reference: `reference` without its groups, and one page per config group."""
    begin, _, rest = pages.path_of("reference").read_text().partition(_GROUPS)
    groups, _, end = rest.partition("\n## ")
    _, *parts = _HEADING.split(groups)
    split, listed = {}, []
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        name = "reference_" + re.sub(r"[^a-z]", "", heading.partition(":")[0].lower())
        split[name] = f"# Config group {heading}\n{body.replace('#### ', '## ')}"
        listed.append(f"- [{heading}]({name}.md)")
    toctree = ["", "```{toctree}", ":hidden:", "", *split, "```", ""]
    lines = [_GROUPS, "One page per group:", "", *listed, "", f"## {end}", *toctree]
    return {"reference": begin + "\n".join(lines), **split}


@functools.cache
def _reference_anchors() -> dict[str, str]:
    """Returns anchor in docs/reference.md -> page, and anchor on it, of the split reference."""
    targets = {}
    for page, text in reference_split().items():
        first, *others = re.findall(r"^#+ (.+)$", text, flags=re.M)
        targets[pages.anchor(first.removeprefix("Config group "))] = f"{page}.md"
        for heading in others:
            targets[pages.anchor(heading)] = f"{page}.md#{pages.anchor(heading)}"
    return targets


def staged(page: str) -> str:
    """Returns a page's text with what only Sphinx reads."""
    text = pages.path_of(page).read_text()
    text = _TO_REFERENCE.sub(lambda link: f"]({_reference_anchors()[link[1]]})", text)
    text = _DIRECTIVE.sub(_directive, text)
    text = _CAPTION.sub(_captioned, text)
    if page in TOP:
        text = text.replace("](docs/", "](").replace("](LICENSE)", "](LICENSE.txt)")
    for top in TOP:
        text = text.replace(f"](../{top}.md", f"]({top}.md")
    below = list(SECTIONS) if page == "index" else []
    if page in SECTIONS:
        below = entries(page)
    if below:
        lines = ["", "```{toctree}", ":hidden:", "", *below, "```", ""]
        text += "\n".join(lines)
    return text


def _directive(comment: re.Match[str]) -> str:
    name, target = comment.groups()
    options = "   :members:\n" if name == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {name}:: {target}\n{options}```"


def _captioned(fence: re.Match[str]) -> str:
    language, title, name = fence.groups()
    caption = title or name
    return f'```{{code-block}} {language}\n:caption: "{caption}"\n'


def stage(folder: Path) -> None:
    """Writes the source of the site into an empty folder."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.md", "__pycache__"), dirs_exist_ok=True)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE.txt")
    for page in [path.stem for path in DOCS.glob("*.md")] + list(TOP):
        (folder / f"{page}.md").write_text(staged(page))
    for page, text in reference_split().items():
        (folder / f"{page}.md").write_text(text)


def build(folder: Path) -> Path:
    """Builds the site in a folder, with warnings as errors, and returns the folder of its HTML.

    Raises:
      RuntimeError: Sphinx warns or fails; the message is its output.
    """
    html = folder / "html"
    done = _sphinx("html", folder, html)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return html


def _sphinx(builder: str, folder: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Runs one of Sphinx's builders on the staged pages, in an empty folder, with warnings as errors."""
    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    stage(source)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        builder,
        "-d",
        str(folder / "doctrees"),
    ]
    return subprocess.run([*command, str(source), str(output)], cwd=ROOT, capture_output=True, text=True, check=False)


def dead_links(folder: Path) -> list[str]:
    """Asks the other hosts for each page that is linked to; returns one line per link without an answer.

    Raises:
      RuntimeError: Sphinx itself fails; the message is its output.
    """
    done = _sphinx("linkcheck", folder, folder / "links")
    answers = folder / "links" / "output.json"
    if not answers.exists():
        raise RuntimeError(done.stdout + done.stderr)
    found = []
    for line in answers.read_text().splitlines():
        answer = json.loads(line)
        if answer["status"] in ("broken", "timeout"):
            found.append(f"{answer['filename']}: {answer['uri']}: {' '.join(answer['info'].split())}")
    if done.returncode and not found:
        raise RuntimeError(done.stdout + done.stderr)
    return found


class _Page(HTMLParser):
    """Links, anchors and fetched addresses of one HTML file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        name = _FETCHES.get(tag)
        relations = set(values.get("rel", "").split())
        if name in values and (tag != "link" or relations & _FETCHED_RELATIONS):
            self.fetched.append(values[name])


def problems(html: Path) -> list[str]:
    """Returns one line per broken or ill-formed link, and per address that the site would fetch from another host."""
    # The theme ships a template among its static files.
    files = [path for path in html.rglob("*.html") if "_static" not in path.relative_to(html).parts]
    parsed = {path: _Page(path.read_text()) for path in files}
    found = []
    for path, page in parsed.items():
        name = path.relative_to(html)
        for address in page.fetched:
            if urlsplit(address).netloc:
                found.append(f"{name}: fetches {address}")
        for address in page.links + page.fetched:
            parts = urlsplit(address)
            if not parts.scheme and not parts.netloc:
                if not _is_found(address, path, parsed):
                    found.append(f"{name}: no such target: {address}")
            elif address not in page.fetched and (wrong := links.problem(address)):
                found.append(f"{name}: {address}: {wrong}")
    for path in html.rglob("*.css"):
        if _CSS_FETCH.search(path.read_text()):
            found.append(f"{path.relative_to(html)}: fetches from another host")
    return found


def _is_found(address: str, path: Path, parsed: dict[Path, _Page]) -> bool:
    """Returns whether an address on this host names a file and an anchor that exist."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return False
    # `#` alone is the top of a page.
    anchor = unquote(parts.fragment)
    return not anchor or target not in parsed or anchor in parsed[target].anchors


def index_for_models(html: Path) -> Iterator[str]:
    """Yields the lines of llms.txt: the title and the Markdown of each page."""
    yield "# mesh-runner"
    for section in SECTIONS:
        yield f"\n## {_title(section)}\n"
        for page in entries(section):
            yield f"- [{_title(page)}](_sources/{page}.md)"
            assert (html / "_sources" / f"{page}.md").is_file()


def _title(page: str) -> str:
    return pages.path_of(page).read_text().partition("\n")[0].removeprefix("# ")


def _report_dead_links() -> int:
    """Prints the links of which no page came; returns the exit code."""
    try:
        found = dead_links(FOLDER.with_name("links"))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(found) or "every link to another host has an answer")
    return 1 if found else 0


def main() -> int:
    """Builds, checks and optionally serves the site; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.site", description="Builds the documentation site.")
    parser.add_argument("action", nargs="?", choices=["build", "serve", "links"], default="build")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    begin = time.monotonic()
    if given.action == "links":
        return _report_dead_links()
    try:
        html = build(FOLDER)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if found := problems(html):
        print("\n".join(found), file=sys.stderr)
        return 1
    (html / "llms.txt").write_text("\n".join(index_for_models(html)) + "\n")
    print(f"{html / 'index.html'}: built and checked in {time.monotonic() - begin:.0f} s")
    if given.action == "serve":
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(html))
        with http.server.ThreadingHTTPServer(("127.0.0.1", given.port), handler) as server:
            print(f"http://127.0.0.1:{server.server_port}; Ctrl-C stops it")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
