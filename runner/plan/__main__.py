"""The plan command: `python -m runner.plan mesh=batch4_model2 layout=megatron`."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cli import run_command
from runner.errors import Interrupted
from runner.schema import RunConfig
from runner.signals import StopRequest
from runner.sweep import state
from runner.sweep.jobs import Job

_COLUMNS = 3  # plans side by side on a terminal


def _compare(jobs: Sequence[Job]) -> None:
    """Prints the jobs' plans side by side and writes compare.md beside their folders."""
    from runner.plan.compare import comparison
    from runner.plan.files import table_markdown
    from runner.plan.table import plan_console, rich_table

    console, path = plan_console(), jobs[0].folder.parent / "compare.md"
    for start in range(0, len(jobs), _COLUMNS):
        console.print(rich_table(comparison(jobs, slice(start, start + _COLUMNS)), console.width))
    table = comparison(jobs)
    path.write_text(f"# {table.title}\n\n{table_markdown(table)}\n")
    console.print(f"written: {path}", soft_wrap=True, markup=False)


def command(config: RunConfig, composed: DictConfig) -> None:
    """Writes and prints the plan."""
    from runner.config import resolved
    from runner.logs import quiet_native_log
    from runner.outputs import required
    from runner.plan.command import plan_config
    from runner.plan.files import write_files
    from runner.plan.table import plan_console, show

    folder, console = Path(HydraConfig.get().runtime.output_dir), plan_console()
    try:
        with StopRequest(), quiet_native_log(folder / "runner.log"):
            plan = plan_config(config)
    except Interrupted:
        print("interrupted", file=sys.stderr)
        raise
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed))))
    files = write_files(plan, folder)
    show(plan, console)
    console.print(f"written: {', '.join(path.name for path in files)} in {folder}", soft_wrap=True, markup=False)


def main() -> None:
    """Runs the command and exits with its code."""
    gc.disable()  # a plan makes much, drops little and ends: searching that for garbage would be a third of its time
    code = run_command(command)
    sweep = state.started()
    if sweep is not None and sweep.ledger.jobs:
        _compare(sweep.ledger.jobs)
    _exit(code)


def _exit(code: int) -> None:
    """Ends the process; where TensorFlow was loaded without taking it to pieces, which takes most of a second."""
    if "tensorflow" not in sys.modules:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
