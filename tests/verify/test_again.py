"""One device is asked again, how far it differs from itself, before a difference at the start alone is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from runner.verify import record as check
from runner.verify.children import SideResult
from runner.verify.compare import spread
from runner.verify.request import write_arrays
from runner.verify.rounding import noise
from tests.engine import cases
from tests.verify.test_compare import run


@pytest.mark.parametrize(
    ("key", "factor", "shift", "sides", "differs"),
    [
        (
            "gradient/d1/kernel",
            1.0,
            1e-3,
            ["reference", "mesh", "perturbed"],
            False,
        ),  # a kink that one device crosses too
        ("gradient/d1/kernel", 10.0, 1e-3, ["reference", "mesh", "perturbed"], True),
        ("initial/d1/kernel", 10.0, 1e-3, ["reference", "mesh"], True),  # no matter of rounding
        ("gradient/d1/kernel", 0.0, 1e-3, ["reference", "mesh"], False),
    ],
)
def test_what_more_runs_of_one_device_do_too_is_no_difference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    factor: float,
    shift: float,
    sides: list[str],
    differs: bool,
) -> None:
    asked: list[str] = []

    def child(side: str, folder: Path) -> SideResult:
        asked.append(side)
        mesh = run()
        mesh[key] += np.float32(factor * shift)
        held = {"reference": run(), "mesh": mesh}
        if side in held:
            write_arrays(folder / f"{side}.npz", held[side])
        size = shift if side == "perturbed" else 1e-5
        if side != "mesh":
            write_arrays(folder / "spread.npz", spread(run(), [run(seed, size) for seed in (1, 2, 3)]))
        return {"kind": "done", "terms": 128, "noise": noise(128)}

    def children(sides: Sequence[str], folder: Path, *_: object, **__: object) -> dict[str, SideResult]:
        return {side: child(side, folder) for side in sides}

    monkeypatch.setattr(check, "run_children", children)
    monkeypatch.setattr(check, "make_request", lambda *_: None)
    monkeypatch.setattr(check, "write_request", lambda *_: None)
    found = check.verify(cases.config({"batch": 2}, hidden=[16]), None, tmp_path)  # type: ignore[arg-type]
    assert asked == sides
    assert (found.verdict == "mismatch") == differs
