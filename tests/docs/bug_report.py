"""The text of an upstream report: what happens, the program, its output, the first affected and installed versions.

`python -m tests.docs.bug_report 4` prints the report of the fourth bug of docs/bugs.md as Markdown. The description
and the output are those of the page, so that there is one text to keep right.
"""

from __future__ import annotations

import argparse
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tests.docs import pages


@dataclass(frozen=True)
class Upstream:
    """Where a bug is reported.

    Attributes:
      repository: `owner/name` at GitHub.
      title: of the report.
      packages: distributions whose versions matter.
      issue: an issue that describes it already, to which the report is a comment; 0: none was found.
    """

    repository: str
    title: str
    packages: tuple[str, ...]
    issue: int = 0


_DTENSOR = ("tensorflow", "tf-keras")
_KERAS = ("keras", "jax", "jaxlib")
_XLA = ("jax", "jaxlib")
REPORTS = {
    1: Upstream("tensorflow/tensorflow", "DTensor: optimizers apply the moments of the previous step", _DTENSOR),
    2: Upstream("keras-team/tf-keras", "DTensor optimizers: use_ema=True keeps the initial weights", _DTENSOR),
    3: Upstream("keras-team/tf-keras", "DTensor: a metric without mesh= counts one device's share", _DTENSOR),
    4: Upstream("openxla/xla", "SPMD: kernel gradient of a convolution counts replicated images", _XLA),
    5: Upstream("openxla/xla", "CPU: programs on virtual devices deadlock in an all-reduce", _XLA),
    6: Upstream("jax-ml/jax", "Convolution gradients are slow in a loop on CPUs", _XLA, 12868),
    7: Upstream("keras-team/keras", "DataParallel on a mesh with two axes raises a TypeError", _KERAS),
    8: Upstream("keras-team/keras-io", "JAX guide passes Keras variables to jax.device_put", _KERAS),
    9: Upstream(
        "keras-team/tf-keras", "Unrolled RNN does not reverse its mask with go_backwards", _DTENSOR, issue=252
    ),
    10: Upstream("keras-team/keras-hub", "Llama's layout map is for Gemma's kernels", ("keras-hub", *_KERAS), 2827),
    11: Upstream("keras-team/keras", "Embedding: gradients are summed in bfloat16 with mixed_bfloat16", _KERAS),
    12: Upstream("keras-team/tf-keras", "Nadam in a graph multiplies its momenta once per variable", _DTENSOR),
    13: Upstream("keras-team/keras", "Adafactor: NaN if a row and a column of a gradient are zero", _KERAS),
    14: Upstream("openxla/xla", "CPU: gradient of a maximum is wrong at optimization level 0", _XLA),
}


def report(number: int) -> str:
    """Returns the Markdown of a report, its title first."""
    upstream = REPORTS[number]
    section = _section(number)
    program = re.search(r"^python (docs/bugs/\w+\.py)$", section, flags=re.M)
    assert program, f"docs/bugs.md, {number}: no program"
    # The closing fence of a command looks like the opening fence of an output, so all blocks are read in order.
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", section, flags=re.M | re.S)
    outputs = [body for language, body in blocks if not language]
    text = re.sub(r"^```.*?^```$", "", section, flags=re.M | re.S)
    # What this project does about a bug is of no use upstream.
    described = text.partition("**Here**")[0].partition("**Upstream**")[0].strip()
    source = (pages.ROOT / program[1]).read_text()
    lines = [f"# {upstream.title}", "", re.sub(r"\n{3,}", "\n\n", described), ""]
    lines += ["## Program", "", f"```python\n{source.strip()}\n```", ""]
    lines += ["## Output", "", f"```\n{outputs[0].strip()}\n```", "", "## Versions", ""]
    lines += [f"- {name} {_installed(name)}" for name in upstream.packages]
    lines.append(f"- Python {platform.python_version()}, {platform.system()}, CPUs")
    lines.append(f"- First affected version: {first_affected(number)}")
    return "\n".join(lines) + "\n"


def first_affected(number: int) -> str:
    """Returns the column "first affected version" of a bug, as in the table of docs/bugs.md."""
    row = re.search(rf"^\| \[{number}\]\(#.*$", pages.path_of("bugs").read_text(), flags=re.M)
    assert row, f"docs/bugs.md, {number}: no row in the table"
    _, _bug, _seen_in, _symptom, first, _upstream, _ = row[0].split("|")
    return first.strip()


def place(number: int) -> str:
    """Returns the address where a report belongs."""
    upstream = REPORTS[number]
    page = f"issues/{upstream.issue}" if upstream.issue else "issues/new"
    return f"https://github.com/{upstream.repository}/{page}"


def _section(number: int) -> str:
    text = pages.path_of("bugs").read_text()
    found = re.search(rf"^## {number}\. [^\n]+\n(.*?)(?=^## )", text, flags=re.M | re.S)
    assert found, f"docs/bugs.md has no section {number}"
    return found[1]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed here)"


def main() -> None:
    """Prints a report and where to file it."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.bug_report", description="Prints an upstream report.")
    parser.add_argument("number", type=int, choices=sorted(REPORTS))
    number = parser.parse_args().number
    print(f"<!-- {place(number)} -->")
    print(report(number), end="")


if __name__ == "__main__":
    main()
