"""The command `python -m runner.plan`: writes and prints plans."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.engine import devices
from runner.host.logs import quiet_native_log
from runner.host.outputs import required
from runner.plan.command import plan_config
from runner.plan.compare import comparison
from runner.plan.files import table_markdown, write_files
from runner.plan.table import plan_console, rich_table, show
from runner.sweep.state import Sweep

# Characters that the first column, and the column of one plan, need on a terminal.
_FIRST_COLUMN = 24
_PLAN_COLUMN = 26


def run(config: RunConfig, composed: DictConfig) -> None:
    """Writes and prints the plan."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = plan_console()
    for line in devices.device_lines(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    with quiet_native_log(folder / "runner.log"):
        plan = plan_config(config)
    with required(folder):
        content = OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed)))
        (folder / "config.yaml").write_text(content)
    files = write_files(plan, folder)
    show(plan, console)
    names = ", ".join(path.name for path in files)
    console.print(f"written: {names} in {folder}", soft_wrap=True, markup=False)


def compare(sweep: Sweep) -> None:
    """Prints the jobs' plans side by side and writes the sweep's compare.md."""
    console = plan_console()
    path = sweep.folder / "compare.md"
    jobs = sweep.ledger.jobs
    # A terminal shows as many plans per table as fit; the file has them all in one.
    count = max((console.width - _FIRST_COLUMN) // _PLAN_COLUMN, 1)
    for start in range(0, len(jobs), count):
        console.print(rich_table(comparison(jobs, slice(start, start + count)), console.width))
        console.print()
    table = comparison(jobs)
    path.write_text(f"# {table.title}\n\n{table_markdown(table)}\n")
    console.print(f"written: {path}", soft_wrap=True, markup=False)
