"""A sweep's jobs of several processes: those that a cluster starts for each job, as the launcher's parameters say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from runner.config.schema import ClusterConfig
from runner.errors import invalid
from runner.processes import place

_KEY = "hydra.launcher.parameters"
_NODES = ("slurm_nodes", "nodes")
_TASKS = ("slurm_ntasks_per_node", "tasks_per_node")


def count(launcher: Mapping[str, Any]) -> int:
    """Returns how many processes a launcher starts for each job.

    Args:
      launcher: its config; only submitit's says a number.
    """
    parameters = launcher.get("parameters") or {}
    nodes, tasks = ([parameters[key] for key in keys if parameters.get(key)] for keys in (_NODES, _TASKS))
    return int(next(iter(nodes), 1)) * int(next(iter(tasks), 1))


def expected(launcher: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Lets the configs of jobs be checked for the processes that their launcher will start."""
    return place.presumed(count(launcher), "Slurm") if launcher.get("cluster") == "slurm" else nullcontext()


def check_tasks(launcher: Mapping[str, Any], cluster: ClusterConfig) -> None:
    """Checks that the processes that a launcher starts for a job are one run.

    Raises:
      ConfigError: each would run the job by itself, in the same folder; or a job would be queued again, which the
        sweep takes for ended.
    """
    if cluster.requeue:
        raise invalid(
            "cluster.requeue", True, problem="a run of its own, not a sweep's job", fix="sweep.resume goes on with it"
        )
    tasks = count(launcher)
    if tasks > 1 and cluster.name != "auto":
        raise invalid(
            _KEY,
            f"{{... {tasks} processes a job}}",
            problem=f"one process a job with cluster={cluster.name}, as each would run all of it",
            fix="set cluster=auto, which lets them share the job",
        )
