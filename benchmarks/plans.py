r"""How far plans are from real runs: published ones, the compilers' figures, and runs on this machine.

    python -m benchmarks.plans published_runs.csv                       # every row by arithmetic: half a second each
    python -m benchmarks.plans published_runs.csv --target 8            # and eight of them by the GPU compiler
    python -m benchmarks.plans --here                                   # ten small configs, really run on this CPU
    python -m benchmarks.plans published_runs.csv --target 8 --write docs/plan_accuracy.md \
        --record runner/plan/known_errors.json

`--record` replaces the errors that the call measures, and keeps the others: without `--target`, those of memory.

The rows have the columns of `benchmarks.published.COLUMNS`. Efficiencies per card are fitted again on all sources but
one, and judged on that one; what is printed for a row never used its own source. The opponent is a constant: the
median MFU of the card's rows of other sources.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plan_errors, plan_fit, plan_rows, plans_here, published
from runner.plan import known_errors

# Comments in a page between which the benchmark writes its tables.
_BEGIN = "<!-- written by benchmarks.plans -->"
_END = "<!-- end -->"


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def write_page(path: Path, tables: str) -> None:
    """Replaces the tables of a page."""
    before, _, rest = path.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}")


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Returns a table whose first line is the heading."""
    parts = ["| " + " | ".join(lines[0]) + " |", "|" + "---|" * len(lines[0])]
    parts += ["| " + " | ".join(line) + " |" for line in lines[1:]]
    return "\n".join(parts)


def read_record(path: Path) -> dict[str, dict[str, object]]:
    """Returns the errors that a file has recorded so far; none if there is no file."""
    if not path.is_file():
        return {}
    content: dict[str, dict[str, object]] = json.loads(path.read_text())
    return content


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, help="CSV file of published runs")
    parser.add_argument("--target", type=int, default=0, metavar="N", help="compile N rows with the target's compiler")
    parser.add_argument("--here", action="store_true", help="run small configs on this CPU")
    parser.add_argument("--json", type=Path, help="all figures of all rows; rows in it are not planned again")
    parser.add_argument("--write", type=Path, help="page to write the tables into")
    parser.add_argument("--record", type=Path, help="file of the errors that plans print")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--child-target", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(plans_here.measured(arguments.child)))
        return
    if arguments.child_target:
        plan, _ = plan_rows.planned(json.loads(arguments.child_target), compiled=True)
        assert plan.forecast is not None
        print(plan.forecast.peak_bytes / plan_rows.GIB)
        return
    if arguments.runs is None and not arguments.here:
        parser.error("name a CSV file of published runs, or --here")
    rows: list[plan_rows.Result] = []
    tables = []
    if arguments.runs:
        rows = plan_rows.results(published.read(arguments.runs), _complain, arguments.json)
        rows += plan_rows.own_results(len(rows))
        plan_fit.judge_times(rows)
        if arguments.target:
            plan_rows.compile_some(rows, arguments.target)
    own: dict[str, plan_errors.Errors] = {}
    if arguments.here:
        lines, own = plans_here.run()
        tables.append(markdown(lines))
    # Errors that this call has not measured stay as they are.
    content = {**read_record(arguments.record or known_errors.FILE), **plan_errors.recorded(rows, own)}
    known = [["figure of a plan", "error"]]
    for name, values in content.items():
        known.append([name, str(known_errors.Errors(**values))])  # type: ignore[arg-type]
    parts = [markdown(known)]
    if rows:
        parts.append(markdown([("figure", "value"), *plan_errors.summary(rows)]))
        print(markdown(plan_errors.table(rows)), end="\n\n")
    text = "\n\n".join([*parts, *tables])
    print(text)
    if arguments.json:
        plan_rows.save(arguments.json, rows)
    if arguments.write:
        write_page(arguments.write, text)
    if arguments.record:
        arguments.record.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
