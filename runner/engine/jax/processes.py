"""JAX's part of several processes: its service, which introduces them to each other, and arrays that span them.

JAX's own watch over the processes ends those that live by C++'s abort, whatever Python has still to record. So each
but process 0 reaches the service by a relay of its own, which stands as long as the process does, and
`runner.processes` notices who has gone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

import jax
import numpy as np
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.jax import private
from runner.processes.launch import free_port
from runner.processes.member import Member
from runner.processes.team import Team

_NEVER_S = 10**8  # no watch of JAX's
_START_S = 120
_BYTES = 1 << 16


def connect(team: Team) -> None:
    """Lets JAX know of the other processes, once; comes before its devices are made."""
    if not isinstance(team, Member) or jax.distributed.is_initialized():
        return
    host, port = team.broadcast("JAX's service", lambda: (team.address, free_port(team.address)))
    where = f"{_quoted(host)}:{port}"
    private.bind_gloo(team.address)
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from us
    # The service is asked at once, without any proxy between.
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower().endswith("_proxy")}
    try:
        jax.distributed.initialize(
            coordinator_address=where if team.is_first else f"127.0.0.1:{_relay(host, port)}",
            coordinator_bind_address=where,
            num_processes=team.count,
            process_id=team.index,
            cluster_detection_method="deactivate",
            initialization_timeout=_START_S,
            heartbeat_timeout_seconds=_NEVER_S,
            shutdown_timeout_seconds=1,
        )
    finally:
        os.environ.update(proxies)


def _quoted(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _relay(host: str, port: int) -> int:
    """Returns the port of this process's relay to a service."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listening.accept()
            try:
                far = socket.create_connection((host, port), timeout=_START_S)
            except OSError:
                near.close()  # JAX tries again
                continue
            far.settimeout(None)
            threading.Thread(target=_pass_on, args=(near, far), daemon=True).start()
            threading.Thread(target=_pass_on, args=(far, near), daemon=True).start()

    threading.Thread(target=serve, name="jax-relay", daemon=True).start()
    made: int = listening.getsockname()[1]
    return made


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Hands on what comes, until nothing more does; the other end is not told of that."""
    with suppress(OSError):
        while data := source.recv(_BYTES):
            sink.sendall(data)


def placed(array: Array, sharding: NamedSharding) -> jax.Array:
    """Returns a host array on the mesh; of several processes each reads the pieces that its own devices hold."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def placed_all(arrays: Mapping[str, Array], shardings: Mapping[str, NamedSharding]) -> dict[str, jax.Array]:
    """Returns host arrays on the mesh, by name."""
    if all(shardings[name].is_fully_addressable for name in arrays):
        return dict(jax.device_put(dict(arrays), {name: shardings[name] for name in arrays}))
    return {name: placed(np.asarray(array), shardings[name]) for name, array in arrays.items()}


def is_here(value: jax.Array) -> bool:
    """Tells whether this process holds all of an array."""
    return bool(value.is_fully_addressable or value.is_fully_replicated)


def readable(arrays: dict[str, jax.Array], whole: NamedSharding) -> dict[str, jax.Array]:
    """Returns arrays that this process can compute with alone.

    Args:
      arrays: by name; what other processes hold parts of becomes whole on each device.
      whole: on the mesh's devices.
    """
    if all(is_here(each) for each in arrays.values()):
        return arrays
    gathered = jax.jit(lambda values: values, out_shardings=whole)(arrays)
    return {name: np.asarray(each) for name, each in gathered.items()}
