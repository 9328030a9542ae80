"""The plan command: `python -m runner.plan mesh=batch4_model2 layout=megatron`."""

from __future__ import annotations

import gc
import logging
import os
import sys

from runner.cli import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.schema import RunConfig
    from runner.sweep.state import Sweep

_COLUMNS = 3  # plans side by side on a terminal


def _compare(sweep: Sweep) -> None:
    """Prints the jobs' plans side by side and writes compare.md into the sweep's folder."""
    from runner.plan.compare import comparison
    from runner.plan.files import table_markdown
    from runner.plan.table import plan_console, rich_table

    console, path, jobs = plan_console(), sweep.folder / "compare.md", sweep.ledger.jobs
    for start in range(0, len(jobs), _COLUMNS):
        console.print(rich_table(comparison(jobs, slice(start, start + _COLUMNS)), console.width))
    table = comparison(jobs)
    path.write_text(f"# {table.title}\n\n{table_markdown(table)}\n")
    console.print(f"written: {path}", soft_wrap=True, markup=False)


def command(config: RunConfig, composed: DictConfig) -> None:
    """Writes and prints the plan."""
    from pathlib import Path

    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from runner.config.convert import resolved
    from runner.host.logs import quiet_native_log
    from runner.host.outputs import required
    from runner.plan.command import plan_config
    from runner.plan.files import write_files
    from runner.plan.table import plan_console, show

    folder, console = Path(HydraConfig.get().runtime.output_dir), plan_console()
    with quiet_native_log(folder / "runner.log"):
        plan = plan_config(config)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed))))
    files = write_files(plan, folder)
    show(plan, console)
    console.print(f"written: {', '.join(path.name for path in files)} in {folder}", soft_wrap=True, markup=False)


def main() -> None:
    """Runs the command and exits with its code."""
    gc.disable()  # a plan makes much, drops little and ends: searching that for garbage would be a third of its time
    entry.main(command, _end)


def _end(code: int) -> int:
    """Compares a sweep's plans; where TensorFlow was loaded ends without taking it to pieces, most of a second."""
    from runner.sweep import state

    sweep = state.started()
    if sweep is not None and sweep.ledger.jobs:
        _compare(sweep)
    if "tensorflow" not in sys.modules:
        return code
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
