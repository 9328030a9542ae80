"""Jobs of several processes, which a cluster starts for each job as the launcher's parameters say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from runner.config.schema import ClusterConfig
from runner.errors import invalid
from runner.processes import place

_KEY = "hydra.launcher.parameters"
# submitit takes a parameter of Slurm with the prefix, which wins, or under its own name for every cluster.
_NODES = ("slurm_nodes", "nodes")
_TASKS = ("slurm_ntasks_per_node", "tasks_per_node")


def count(launcher: Mapping[str, Any]) -> int:
    """Returns how many processes a launcher starts per job.

    Args:
      launcher: its config; only that of submitit has a number.
    """
    parameters = launcher.get("parameters") or {}
    return _first(parameters, _NODES) * _first(parameters, _TASKS)


def _first(parameters: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        if parameters.get(key):
            return int(parameters[key])
    return 1


def expected(launcher: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Lets the configs of jobs be checked for the processes that their launcher will start."""
    if launcher.get("cluster") == "slurm":
        return place.presumed(count(launcher), "Slurm")
    return nullcontext()


def check_tasks(launcher: Mapping[str, Any], cluster: ClusterConfig) -> None:
    """Checks that the processes that a launcher starts for a job are one run.

    Raises:
      ConfigError: each would run the job by itself, in the same folder.
    """
    processes = count(launcher)
    if processes > 1 and cluster.name != "auto":
        raise invalid(
            _KEY,
            f"{{... {processes} processes per job}}",
            problem=f"with cluster={cluster.name}, each process would run the whole job",
            fix="set cluster=auto, which lets them share the job",
        )
