"""The plan command: `python -m runner.plan mesh=batch4_model2 layout=megatron`."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cli import run_command
from runner.jobs import Job, current_job, run_job
from runner.schema import RunConfig

_COLUMNS = 3  # plans side by side on a terminal


class PlanCommand:
    """Plans one config, or every job of a multirun in a process of its own.

    Attributes:
      jobs: of the multirun, those that failed included.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, config: RunConfig, composed: DictConfig) -> None:
        """Writes and prints the plan; for a job of a multirun, prints where its plan is."""
        job = current_job()
        if job is None:
            _plan(config, composed)
            return
        self.jobs.append(job)
        run_job(job, "runner.plan", quiet=True)
        print(f"job {job.number}: {' '.join(job.overrides)}: {job.folder / 'plan.md'}", flush=True)

    def compare(self) -> None:
        """Prints the jobs' plans side by side and writes compare.md beside their folders."""
        from runner.plan.compare import comparison
        from runner.plan.files import table_markdown
        from runner.plan.table import plan_console, rich_table

        console, path = plan_console(), self.jobs[0].folder.parent / "compare.md"
        for start in range(0, len(self.jobs), _COLUMNS):
            console.print(rich_table(comparison(self.jobs, slice(start, start + _COLUMNS)), console.width))
        table = comparison(self.jobs)
        path.write_text(f"# {table.title}\n\n{table_markdown(table)}\n")
        console.print(f"written: {path}", soft_wrap=True, markup=False)


def _plan(config: RunConfig, composed: DictConfig) -> None:
    from runner.logs import quiet_native_log
    from runner.plan.command import plan_config
    from runner.plan.files import write_files
    from runner.plan.table import plan_console, show

    folder, console = Path(HydraConfig.get().runtime.output_dir), plan_console()
    with quiet_native_log(folder / "runner.log"):
        plan = plan_config(config)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(composed, resolve=True))
    files = write_files(plan, folder)
    show(plan, console)
    console.print(f"written: {', '.join(path.name for path in files)} in {folder}", soft_wrap=True, markup=False)


def main() -> None:
    """Runs the command and exits with its code."""
    command = PlanCommand()
    code = run_command(command)
    if command.jobs:
        command.compare()
    sys.exit(code)


if __name__ == "__main__":
    main()
