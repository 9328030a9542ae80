"""A checkpoint goes on in any number of processes, of any engine."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.processes.running import last, losses, run, several

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MESH = ("mesh.axes={model:2,batch:2}", "layout=fsdp_megatron", "trainer.epochs=2")
_STEPS = 22  # of an epoch


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one epoch of two, ended by its signal, by engine and number of processes."""
    made = {}
    for name, engine, count in (("jax-1", "jax", 1), ("jax-4", "jax", 4), ("dtensor-1", "keras_dtensor", 1)):
        made[name] = tmp_path_factory.mktemp(name)
        chosen = [*MESH, f"engine={engine}", *several(count)]
        run(made[name], *(one for one in chosen if "epochs" not in one), "trainer.epochs=1")
    return made


@pytest.mark.parametrize(
    ("source", "engine", "count"),
    [("jax-4", "jax", 1), ("jax-1", "jax", 4), ("dtensor-1", "jax", 4), ("jax-4", "keras_dtensor", 1)],
)
def test_the_next_steps_are_those_of_where_it_was_saved(
    tmp_path: Path, begun: dict[str, Path], source: str, engine: str, count: int
) -> None:
    stays = {"jax-1": (1, "jax"), "jax-4": (4, "jax"), "dtensor-1": (1, "keras_dtensor")}[source]
    went: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
    for name, (processes, where) in (("stays", stays), ("moves", (count, engine))):
        shutil.copytree(begun[source], tmp_path / name)
        shutil.rmtree(tmp_path / name / "run")
        cluster = several(processes) or ["cluster=single"]
        run(tmp_path / name, "resume=latest", *MESH, f"engine={where}", *cluster)
        went.append(losses(last(tmp_path / name))[_STEPS:])
    assert len(went[0]) == _STEPS
    np.testing.assert_allclose(went[0], went[1], rtol=0, atol=1e-5)
