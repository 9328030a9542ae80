"""What counts as a difference: tolerances from perturbed runs, entries by rank, and what the report says of them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from runner.verify.meshproof.differences import FACTOR, ULPS, Check, at_ranks
from runner.verify.meshproof.rounding import Rounding, rounding_of
from runner.verify.points import compare, spread
from runner.verify.report import Verification

EPSILON = float(np.finfo(np.float32).eps)
Arrays = dict[str, np.ndarray]


def run(seed: int = 0, shift: float = 0.0, steps: int = 3) -> Arrays:
    """Returns a small run's arrays; `shift` moves every entry of everything but the initial weights at random."""
    made = np.random.default_rng(0)
    off = np.random.default_rng(seed)
    found = {"initial/d1/kernel": made.normal(size=(20, 10)), "loss": np.linspace(2.0, 1.0, steps)}
    found["gradient/d1/kernel"] = made.normal(size=(20, 10))
    found["final/d1/kernel"] = found["initial/d1/kernel"] + 0.1 * made.normal(size=(20, 10))
    found["initial/bn/mean"], found["final/bn/mean"] = np.zeros(10), made.normal(size=10)
    found["optimizer/m/d1/kernel"] = made.normal(size=(20, 10))
    for key, value in found.items():
        moved = 0.0 if key.startswith("initial/") else shift * off.uniform(-1, 1, value.shape)
        found[key] = (value + moved).astype(np.float32)
    return found


def perturbed(shift: float = 1e-5) -> list[Arrays]:
    return [run(seed, shift) for seed in (1, 2, 3)]


def checks(mesh: Arrays, runs: list[Arrays] | None = None, single: Arrays | None = None) -> dict[str, Check]:
    single = run() if single is None else single
    runs = perturbed() if runs is None else runs
    return {check.name: check for check in compare(single, spread(single, runs), mesh, Rounding(0.0))}


def failed(found: dict[str, Check]) -> set[str]:
    return {name for name, check in found.items() if not check.passed}


def test_every_array_is_compared_as_far_off_as_the_perturbed_runs_and_a_hundred_times_as_far() -> None:
    found = checks(run(4, 1e-5))
    assert failed(found) == set()
    kinds = {name: check.kind for name, check in found.items()}
    assert kinds == {
        "initial/d1/kernel": "initial",
        "initial/bn/mean": "initial",
        "loss": "loss",
        "gradient/d1/kernel": "gradient",
        "d1/kernel": "parameter",
        "bn/mean": "statistic",
        "optimizer/m/d1/kernel": "slot",
    }
    assert failed(checks(run(4, 1e-3))) == {name for name, kind in kinds.items() if kind != "initial"}


def test_one_wild_entry_of_a_perturbed_run_does_not_hide_that_most_entries_are_off() -> None:
    perturbed_runs = perturbed()
    perturbed_runs[0]["final/d1/kernel"][3, 3] += 1.0
    mesh = run()
    mesh["final/d1/kernel"] += 1e-3
    found = checks(mesh, perturbed_runs)
    assert failed(found) == {"d1/kernel"}
    assert found["d1/kernel"].rank != "all"


def test_an_entry_that_is_wild_in_a_perturbed_run_too_is_allowed_and_another_is_not() -> None:
    perturbed_runs = perturbed()
    perturbed_runs[1]["final/d1/kernel"][3, 3] += 0.1
    mesh = run()
    mesh["final/d1/kernel"][5, 5] += 0.1
    assert failed(checks(mesh, perturbed_runs)) == set()
    mesh["final/d1/kernel"][5, 5] += 0.4
    found = checks(mesh, perturbed_runs)
    assert failed(found) == {"d1/kernel"}
    assert found["d1/kernel"].rank == "all"


@pytest.mark.parametrize("share", [0.02, 0.12, 0.6])
def test_a_part_of_the_entries_is_enough_to_fail(share: float) -> None:
    perturbed_runs = perturbed()
    mesh = run()
    entries = mesh["gradient/d1/kernel"].reshape(-1)
    entries[: int(share * entries.size)] *= 2
    found = checks(mesh, perturbed_runs)
    assert failed(found) == {"gradient/d1/kernel"}
    assert found["gradient/d1/kernel"].ratio > 1000


def test_initial_weights_must_be_equal_to_the_last_bit() -> None:
    mesh = run()
    mesh["initial/d1/kernel"][0, 0] = np.nextafter(mesh["initial/d1/kernel"][0, 0], np.float32(9))
    assert failed(checks(mesh)) == {"initial/d1/kernel"}


def test_a_loss_fails_at_the_first_step_beyond_what_the_perturbed_runs_did_until_then() -> None:
    mesh = run()
    mesh["loss"][1:] += 1e-3
    found = checks(mesh)
    assert failed(found) == {"loss"}
    assert found["loss"].step == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["loss", "gradient/d1/kernel", "final/bn/mean", "optimizer/m/d1/kernel"])
def test_what_is_not_finite_fails(key: str, value: float) -> None:
    mesh = run()
    mesh[key].reshape(-1)[-1] = value
    (name,) = failed(checks(mesh))
    assert name == key.removeprefix("final/")


def test_a_perturbed_run_that_is_not_finite_allows_nothing() -> None:
    perturbed_runs = perturbed()
    perturbed_runs[0]["final/d1/kernel"][:] = np.nan
    found = checks(run(4, 1e-5), perturbed_runs)
    assert failed(found) == {"d1/kernel"}


def test_where_one_device_differs_from_itself_by_half_a_training_from_the_start_shows_nothing() -> None:
    mesh = run()
    mesh["optimizer/m/d1/kernel"][0, 0] *= 100
    mesh["gradient/d1/kernel"][0, 0] *= 100  # of the first step, which is no chaos
    assert failed(checks(mesh)) == {"optimizer/m/d1/kernel", "gradient/d1/kernel"}
    assert failed(checks(mesh, perturbed(1.0))) == {"optimizer/m/d1/kernel", "gradient/d1/kernel"}
    assert failed(checks(mesh, perturbed(4.0))) == {"gradient/d1/kernel"}
    mesh["final/d1/kernel"][0, 0] = np.nan
    assert failed(checks(mesh, perturbed(4.0))) == {"d1/kernel", "gradient/d1/kernel"}


@pytest.mark.parametrize(("drawn", "fails"), [(0.0, set()), (1e-9, {"optimizer/m/d1/kernel"})])
def test_a_slot_that_noise_draws_again_is_not_compared_and_one_that_keeps_its_size_is(
    drawn: float, fails: set[str]
) -> None:
    # Squares of a gradient that is 0 but for rounding, whose remainder is eight times as large on the mesh.
    runs = [run(), *perturbed(), run(4, 1e-5)]
    for seed, (arrays, factor) in enumerate(zip(runs, [1.0, 1.0, 1.0, 1.0, 8.0], strict=True)):
        remainder = factor * np.random.default_rng(seed).normal(size=8)
        arrays["optimizer/m/d1/kernel"] = np.square(1e-10 * remainder + drawn).astype(np.float32)
    single, *perturbed_runs, mesh = runs
    mesh["optimizer/m/d1/kernel"] *= 1.0 + 2 * (drawn > 0)
    assert failed(checks(mesh, perturbed_runs, single)) == fails


def test_without_perturbed_runs_differences_a_few_ulps_are_allowed_and_no_more() -> None:
    largest = float(np.abs(run()["gradient/d1/kernel"]).max())
    for ulps, passes in ((ULPS * 0.9, True), (ULPS * 1.5, False)):
        mesh = run()
        mesh["gradient/d1/kernel"][0, 0] += ulps * EPSILON * largest
        assert checks(mesh, perturbed(0.0))["gradient/d1/kernel"].passed == passes


def test_a_check_says_which_relative_error_it_would_have_seen() -> None:
    sharp, blunt = checks(run())["d1/kernel"].resolution, checks(run(), perturbed(0.1))["d1/kernel"].resolution
    assert sharp < 1e-3
    assert blunt > 1


def test_what_is_kept_in_bfloat16_may_differ_by_an_ulp_of_each_entry_and_no_more() -> None:
    weights = np.asarray([1.0, 2.0**-8, 2.0**-8, 2.0**-8], np.float32)
    start = {"initial/d1/kernel": weights * 0, "loss": np.ones(1, np.float32), "gradient/d1/kernel": weights}
    single = start | {"final/d1/kernel": weights}
    still = spread(single, [single])

    def ratio(moved: float, state: str) -> float:
        mesh = start | {"final/d1/kernel": weights + np.asarray([0.0, moved, moved, moved], np.float32)}
        found = compare(single, still, mesh, rounding_of(0, state=state))
        return next(check.ratio for check in found if check.kind == "parameter")

    assert ratio(2.0**-16, "bfloat16") < 1 < ratio(2.0**-16, "master")
    assert ratio(2.0**-12, "bfloat16") > 1, "an ulp of the largest entry is no measure of another"


def test_whole_numbers_are_compared_exactly() -> None:
    held, moved = run(), run()
    for key in ("initial/bn/mean", "final/bn/mean"):
        held[key] = np.arange(10, dtype=np.int32)
        moved[key] = np.arange(10, dtype=np.int32)
    assert failed(checks(moved, [held], held)) == set()
    moved["final/bn/mean"][3] += 1
    assert failed(checks(moved, [held], held)) == {"bn/mean"}


def test_arrays_that_one_side_lacks_or_has_in_another_shape_are_named() -> None:
    mesh = run()
    del mesh["optimizer/m/d1/kernel"]
    with pytest.raises(ValueError, match="optimizer/m/d1/kernel"):
        checks(mesh)
    mesh = run()
    mesh["final/bn/mean"] = np.zeros(9, np.float32)
    with pytest.raises(ValueError, match=r"final/bn/mean has shape \[10\] on one device and \[9\]"):
        checks(mesh)


def test_ranks_are_the_largest_difference_of_that_share_of_entries() -> None:
    values = np.arange(1, 201, dtype=np.float32)
    assert at_ranks(values).tolist() == [100, 180, 198, 200]
    assert at_ranks(np.float32([-2])).tolist() == [2, 2, 2, 2]


def test_the_noise_grows_with_the_root_of_the_longest_sum() -> None:
    assert rounding_of(128).noise == pytest.approx(4 * EPSILON * math.sqrt(128))
    assert rounding_of(512).noise == pytest.approx(2 * rounding_of(128).noise)


def test_a_batch_statistic_may_differ_by_the_noise_of_its_own_sum() -> None:
    moved = float(np.abs(run()["final/bn/mean"]).max())
    for share, passes in ((0.5, True), (2.0, False)):
        mesh = run()
        mesh["final/bn/mean"] += share * 1e-3 * moved
        found = {check.name: check for check in compare(run(), spread(run(), [run()]), mesh, Rounding(1e-3))}
        assert failed(found) == (set() if passes else {"bn/mean"})


def report(mesh: Arrays) -> Verification:
    return Verification(tuple(checks(mesh).values()), 3, "batch=8", 128, rounding_of(128), 8)


def test_one_device_is_compared_with_itself_and_the_verdict_says_so() -> None:
    note = "one device with itself, so no sharding is verified"
    found = report(run())
    assert [note in one.line() for one in (found, replace(found, devices=1))] == [False, True]


def test_the_verdict_names_what_failed_first_and_the_worst_of_each_kind() -> None:
    mesh = run()
    mesh["gradient/d1/kernel"] *= 2
    mesh["optimizer/m/d1/kernel"] *= 3
    mesh["loss"][1] += 0.1
    found = report(mesh)
    assert found.verdict == "mismatch"
    assert "mismatch: the mesh batch=8 differs from one device, first in gradient/d1/kernel, step 1" in found.line()
    assert "optimizer/m/d1/kernel (" in found.line()
    assert "loss (" in found.line()
    assert found.line().endswith("3 of 7 comparisons failed")


def test_the_json_is_plain_and_holds_every_figure() -> None:
    mesh = run()
    mesh["initial/bn/mean"][0] = 1
    content = json.loads(json.dumps(report(mesh).content(), allow_nan=False))
    assert (content["verdict"], content["verified"]) == ("mismatch", False)
    assert content["line"].startswith("mismatch: ")
    assert content["first"] == "initial/bn/mean"
    assert [check["passed"] for check in content["checks"]].count(False) == 1
    gradient = next(check for check in content["checks"] if check["name"] == "gradient/d1/kernel")
    assert gradient["tolerance"] == pytest.approx(FACTOR * gradient["spread"], rel=0.1)
