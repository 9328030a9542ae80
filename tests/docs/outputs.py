"""Compares the output blocks of pages with what their commands print, line by line.

What differs from run to run, such as times and IDs of runs, is replaced by a placeholder in both. Everything else must
be equal, with `...` in a page for any text. `NUMBERS` lists blocks of which the test compares the words only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs import following, pages

# Begins of the outputs of a plan.
VERDICTS_OF_PLANS = ("fits: ", "does not fit: ")
# The front pages show blocks of other pages, or lines of them.
FRONT = (pages.README, "index")
# What differs from run to run -> its placeholder.
_VARYING = {
    # Folders of runs and sweeps; `out-3-runner` is one of a test.
    r"[^\s()]*(?:\b\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{8}|\bout-\d+-\w+)": "<folder>",
    r"\b[0-9a-f]{32}\b": "<run>",
    r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+": "<port>",
    r"(?<=sqlite:)///\S+": "<path>",
    r"\S+ -m mlflow(?= ui )": "mlflow",
    r"(?<!\S)/\w\S+": "<path>",
    # Seconds of a stage or a job, and ages of runs.
    r"(?<![\w.])\d+(?:\.\d+)? [smhd]\b": "<age>",
    # Begins of the IDs of runs, in a table of them.
    r"^[0-9a-f]{8} ": "<run> ",
    # Where a variable of `runner.verify` differs most, and which one: rounding decides that.
    r"(?<=\w ) +(?:update|gradient)(?: [mv])?(?= +\d)": " <worst>",
    r"(?<=worst: )\S+": "<variable>",
    # Differences by rounding, such as 2.8e-09.
    r"\b\d(?:\.\d+)?e-\d\d\b": "<rounding>",
    # Rules and borders of tables are as long as their columns are wide.
    r"[─━]+": "─",
    r"\s+": " ",
}
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)*(?!\w)")


@dataclass(frozen=True)
class Output:
    """One output block of a page.

    Attributes:
      page: its page.
      text: of the block.
      needs: what the commands above it need that may be missing; empty: nothing.
    """

    page: str
    text: str
    needs: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines that a command prints."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("$ ")]

    @property
    def first(self) -> str:
        """Its first line that is neither a command nor `...`."""
        return next(line.strip() for line in self.lines if line.strip() != "...")

    @property
    def masks_numbers(self) -> bool:
        """Whether only its words are compared."""
        return self.first.startswith(NUMBERS.get(self.page, ()))


# Page -> begin of outputs whose numbers the test's commands don't print. They are sums of floats that another
# processor rounds otherwise, of other versions, or of steps that the test leaves out.
NUMBERS: dict[str, tuple[str, ...]] = {
    "first_run": ("mesh batch=1", "runner "),
    "runs": ("1 run, ",),
    "text": ("text, by split",),
    "verify": ("variable ",),
}


def of(page: str) -> list[Output]:
    """Returns the output blocks of a page."""
    found = []
    needs = ""
    for kind, text in pages.blocks(page):
        if kind.startswith("sh"):
            needed = re.search(r"[Nn]eeds:? ([^\"]+)", kind)
            needs = needed[1] if needed else ""
        elif not kind:
            found.append(Output(page, text, needs if needs in pages.EXTRAS else ""))
    return found


def missing_lines(page: str, printed: str) -> list[str]:
    """Returns the lines of a page's outputs that are compared with its commands, and that no command printed."""
    missing = []
    for output in of(page):
        if comparison(output) == "commands" and not following.is_absent(output.needs):
            missing += missing_in(output, printed)
    return missing


def missing_in(output: Output, printed: str) -> list[str]:
    """Returns the lines of an output that no command printed."""
    lines = {masked(line, output.masks_numbers) for line in printed.splitlines()}
    missing = []
    for line in output.lines:
        shown = masked(line, output.masks_numbers)
        if not any(pages.matches(one, shown) for one in lines):
            missing.append(line)
    return missing


def masked(line: str, with_numbers: bool = False) -> str:
    """Returns a line with placeholders for what differs from run to run; with those of numbers if asked."""
    line = line.strip()
    for pattern, placeholder in _VARYING.items():
        line = re.sub(pattern, placeholder, line)
    if with_numbers:
        line = _NUMBER.sub("<number>", line)
    return line


def comparison(output: Output) -> str:
    """Returns what compares an output: a key of `COMPARISONS`; empty: nothing."""
    for name in _comparisons(output):
        return name
    return ""


def _comparisons(output: Output) -> Iterator[str]:
    page, text = output.page, output.text
    if page == "bugs":
        yield "bugs"
    if text.startswith(VERDICTS_OF_PLANS) and page in following.PLANS:
        yield "plan"
    errors = {line for _, line in pages.shown_errors(page)}
    if set(output.lines) <= errors:
        yield "error"
    if page in FRONT and is_copy(output):
        yield "copy"
    if any(text.startswith(begin) for begin in ELSEWHERE.get(page, ())):
        yield "elsewhere"
    if page in following.QUESTIONS or page in following.RUN:
        yield "commands"


# Page -> begin of outputs of situations that no command of the page makes; tests/docs/test_outputs.py makes them.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "checkpoints": ("goodput: ", "interrupted: ", "Resuming run "),
    "fit_in_memory": ("error: out of memory",),
    "project": ("note: ",),
}


def is_copy(output: Output) -> bool:
    """Returns whether another page has all lines of an output in one of its own."""
    others = [other for page in pages.names() if page not in FRONT for other in of(page)]
    return any(set(output.lines) <= set(other.lines) for other in others)


def unrun() -> dict[str, list[str]]:
    """Returns page -> what each output needs that no test has."""
    title = re.compile(r'text title="Needs: ([^"]+)"')
    needed: dict[str, list[str]] = {}
    for page in pages.names():
        for kind, _ in pages.blocks(page):
            if match := title.fullmatch(kind):
                needed.setdefault(page, []).append(match[1])
    return needed


def listings() -> dict[str, int]:
    """Returns page -> how many blocks are no output: lists, formulas and parts of command lines."""
    return dict(Counter(page for page in pages.names() for kind, _ in pages.blocks(page) if kind == "text"))
