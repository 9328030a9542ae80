"""DTensor's part in runs of several processes.

Each is a client, and tensors have shards in several of them.
"""

from __future__ import annotations

import os

from tensorflow.experimental import dtensor

from runner.engine.dtensor import private
from runner.processes.launch import free_port, host_and_port
from runner.processes.member import Member
from runner.processes.team import Team, current

# Not empty if this process is a client: DTensor can't be initialized twice.
_connected: list[bool] = []


def connect(team: Team, kind: str) -> None:
    """Makes this process one of DTensor's clients, once.

    Must run before TensorFlow's devices are created.

    Args:
      team: the processes.
      kind: of the devices, `CPU` or `GPU`.
    """
    if not isinstance(team, Member) or _connected:
        return
    _connected.append(True)
    own_job = host_and_port(team.address, free_port(team.address))
    jobs = team.all_gather("DTensor's clients", own_job)
    os.environ["DTENSOR_JOB_NAME"] = "worker"
    os.environ["DTENSOR_CLIENT_ID"] = str(team.index)
    os.environ["DTENSOR_JOBS"] = ",".join(jobs)
    # Without TensorFlow's coordination service: its client 0 would wait for ever for a client that never starts, and
    # it ends processes that are alive. `runner.processes` notices both cases.
    dtensor.initialize_accelerator_system(kind, enable_coordination_service=False)
    # A client must not be asked before its server answers.
    team.all_gather("DTensor's servers", True)


def is_here(mesh: dtensor.Mesh) -> bool:
    """Returns whether all devices of a mesh are this process's."""
    return bool(len(mesh.local_device_ids()) == mesh.size)


def wait_for_devices(mesh: dtensor.Mesh) -> None:
    """Waits for all started operations, if other processes take part in them."""
    if not is_here(mesh):
        with current().waiting():
            private.wait_for_devices()
