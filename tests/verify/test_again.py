"""One device is asked again, how far it differs from itself, before a difference at the start alone is told."""

import numpy as np
import pytest

from runner.data.base import Array
from runner.verify import worker
from runner.verify.meshproof.rounding import rounding_of
from runner.verify.request import Request
from tests.configs import with_keys
from tests.engine import cases
from tests.verify.test_compare import run

STEPS = 3
SHIFT = 1e-3


class Reference:
    """One device whose first perturbed runs differ less from it than the later ones."""

    longest_sum, rounding = 128, rounding_of(128)

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def train(self, seed: int = 0) -> dict[str, Array]:
        self.seeds.append(seed)
        return run(seed, 1e-5 if seed in worker.SEEDS else SHIFT) if seed else run()

    def points(self, *_: object) -> dict[str, Array]:
        return {}

    at_points = points


@pytest.mark.parametrize(
    ("key", "factor", "runs", "differs"),
    [
        ("gradient/d1/kernel", 1.0, 15, False),  # a kink that one device crosses too
        ("gradient/d1/kernel", 10.0, 15, True),
        ("initial/d1/kernel", 10.0, 3, True),  # no matter of rounding
        ("gradient/d1/kernel", 0.0, 3, False),
    ],
)
def test_what_more_runs_of_one_device_do_too_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, key: str, factor: float, runs: int, differs: bool
) -> None:
    reference = Reference()
    monkeypatch.setattr(worker, "make_reference", lambda _: reference)
    mesh = run()
    mesh[key] += np.float32(factor * SHIFT)
    config = with_keys(cases.config({"batch": 2}), {"verify.steps": STEPS})
    one_device = worker.computed(Request(config, cases.data(), STEPS, cases.batches(1, 2)))
    found = one_device.compared_with(mesh)
    assert reference.seeds == list(range(runs + 1))
    assert (found.verdict == "mismatch") == differs
