"""Randomly perturbed weights are off every kink, valid, and made by their seed; each variable has its resolution."""

import numpy as np
import pytest

from runner.verify import points
from runner.verify.meshproof import perturb
from runner.verify.meshproof.differences import Check
from runner.verify.meshproof.rounding import Rounding, gradients_with_noise
from runner.verify.meshproof.verdict import NEAR, SENSITIVITY, sensitivities, verdict_of
from runner.verify.points import compare, spread
from runner.verify.report import Verification

NOISE = 1e-5
Arrays = dict[str, np.ndarray]


def weights() -> Arrays:
    rng = np.random.default_rng(3)
    return {
        "conv/kernel": (0.1 * rng.normal(size=(3, 3, 4, 8))).astype(np.float32),
        "conv/bias": np.zeros(8, np.float32),
        "token/table": np.zeros((1, 6), np.float32),
    }


def test_every_parameter_moves_and_a_bias_by_its_kernels_size() -> None:
    before = weights()
    after = perturb.weights(before, 0.3, np.random.default_rng(0))
    assert np.std(after["conv/bias"]) == pytest.approx(0.03, rel=0.6)
    assert (after["conv/bias"] != 0).all()
    assert (after["token/table"] != 0).all(), "of a layer that begins at zero too"
    assert {path: value.dtype for path, value in after.items()} == dict.fromkeys(before, np.float32)
    again = perturb.weights(before, 0.3, np.random.default_rng(0))
    assert all((after[path] == again[path]).all() for path in before)


def test_slots_have_the_sizes_and_signs_of_the_trainings_and_no_entry_is_tiny() -> None:
    gradient = np.random.default_rng(1).normal(size=(20, 10)).astype(np.float32)
    gradient[0] = 1e-9
    trained = {"optimizer/velocity/d/kernel": gradient**2, "optimizer/average/d/kernel": gradient}
    trained["optimizer/count/d/kernel"] = np.int32(7)
    made = perturb.slots(trained, np.random.default_rng(0))
    assert {path: (value.dtype, value.shape) for path, value in made.items()} == {
        path: (value.dtype, value.shape) for path, value in trained.items()
    }
    assert (made["optimizer/velocity/d/kernel"] > 0.1).all()
    # What centered RMSprop takes the root of.
    assert (made["optimizer/velocity/d/kernel"] > made["optimizer/average/d/kernel"] ** 2).all()
    assert (made["optimizer/average/d/kernel"] < 0).any()
    assert made["optimizer/count/d/kernel"] == 7


def test_an_array_is_described_by_its_key() -> None:
    run = {"loss": np.ones(3), "gradient/d1/kernel": np.ones(2)}
    described = {key: points.described(key, run) for key in ("final/d1/kernel", "final/bn/mean", "ema/d1/kernel")}
    assert [entry.kind for entry in described.values()] == ["parameter", "statistic", "average"]
    update = points.described("point1/end/optimizer/m/d1/kernel", run)
    assert (update.variable, update.before) == ("d1/kernel", "point1/start/optimizer/m/d1/kernel")
    assert points.described("point0/evaluated/accuracy", run).is_loss


def test_points_stand_late_and_not_first() -> None:
    assert perturb.steps(20) == [19, 9]
    assert perturb.steps(1) == [0, 0]


def a_run(gradients: Arrays, factor: dict[str, float] | None = None, noise: float = 0.0, seed: int = 0) -> Arrays:
    """Returns arrays of a run whose gradients at its only point are scaled, with noise as a perturbed run's are."""
    found = {path: (gradient * (factor or {}).get(path, 1.0)) for path, gradient in gradients.items()}
    if noise:
        found = gradients_with_noise(found, Rounding(noise), np.random.default_rng(seed))
    start = weights()
    made = {"loss": np.ones(1, np.float32), "point0/loss": np.ones(1, np.float32), "point0/step": np.asarray(0)}
    for path, value in start.items():
        made |= {f"initial/{path}": value, f"gradient/{path}": gradients[path], f"final/{path}": value}
        made |= {f"point0/start/{path}": value, f"point0/gradient/{path}": found[path].astype(np.float32)}
        made[f"point0/end/{path}"] = (value - 0.1 * found[path]).astype(np.float32)
    return made


def compared(reference: Arrays, twins: list[Arrays], mesh: Arrays, noise: float = NOISE) -> list[Check]:
    return compare(reference, spread(reference, twins), mesh, Rounding(noise))


def gradients() -> Arrays:
    rng = np.random.default_rng(1)
    return {path: rng.normal(size=value.shape).astype(np.float32) for path, value in weights().items()}


def judged(given: Arrays, factor: dict[str, float] | None = None, moved: float | None = None) -> list[Check]:
    """Returns the checks; `moved` is the share of the bias's tiny gradient that the noise draws again."""
    twins = [a_run(given, noise=NOISE, seed=seed) for seed in (1, 2, 3)]
    reference = a_run(given)
    if moved is not None:
        bias = given["conv/bias"]
        reference["point0/tiny/conv/bias"] = bias
        for seed, twin in enumerate(twins):
            other = np.abs(bias).max() * np.random.default_rng(seed).uniform(-1, 1, bias.shape)
            twin["point0/tiny/conv/bias"] = (bias + moved * (other - bias)).astype(np.float32)
    return compared(reference, twins, a_run(given, factor))


def test_gradients_that_agree_are_verified_and_each_variable_has_its_resolution() -> None:
    found = judged(gradients())
    assert verdict_of(found) == "verified"
    assert all(each.is_sensitive and each.resolution < 1e-3 for each in sensitivities(found))


@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.9, 0.999, 1.1, 2.0])
@pytest.mark.parametrize("path", ["conv/kernel", "conv/bias", "token/table"])
def test_a_scaled_gradient_differs_by_name(path: str, factor: float) -> None:
    found = judged(gradients(), {path: factor})
    assert verdict_of(found) == "mismatch"
    failed = [check for check in found if not check.passed]
    assert {check.variable for check in failed} == {path}
    assert min(failed, key=lambda check: check.step).kind == "point"


def test_a_size_off_by_less_than_the_noise_of_each_entry_is_seen() -> None:
    given, noise = gradients(), 0.05
    twins = [a_run(given, noise=noise, seed=seed) for seed in (1, 2, 3)]
    rng = np.random.default_rng(9)
    mesh = a_run(given)
    path = "point0/gradient/conv/kernel"
    mesh[path] = (mesh[path] * (1 + 0.02 * rng.normal(size=mesh[path].shape))).astype(np.float32)
    assert all(check.passed for check in compared(a_run(given), twins, mesh, 1e-4))
    mesh[path] *= 1.1
    (found,) = [check for check in compared(a_run(given), twins, mesh, 1e-4) if not check.passed]
    assert (found.name, found.rank) == (path, "size")


@pytest.mark.parametrize("moved", [1.0, 0.4])
def test_a_gradient_whose_terms_cancel_is_zero_on_both_sides_and_verified(moved: float) -> None:
    given = gradients()
    given["conv/bias"] = (given["conv/bias"] * 1e-8).astype(np.float32)
    # Of a few entries, noise as small as rounding may draw only a part again.
    known = {each.variable: each for each in sensitivities(judged(given, {"conv/bias": -3.0}, moved=moved))}
    assert known["conv/bias"].zero
    assert not known["conv/bias"].is_sensitive
    assert known["conv/bias"].is_verified
    # The noise moves it by little: it is a gradient, and too small to be seen. Or no gradient arrives.
    for moved in (None, 1e-3):
        known = {each.variable: each for each in sensitivities(judged(given, {"conv/bias": -3.0}, moved=moved))}
        assert not known["conv/bias"].is_verified
    larger = judged(given, {"conv/bias": 1e5})  # beyond what rounding leaves of terms like the kernel's
    assert "conv/bias" in {check.variable for check in larger if not check.passed}


def test_the_remainder_of_a_zero_gradient_is_compared_by_its_entries_and_not_by_its_size() -> None:
    given = gradients()
    given["conv/bias"] = (given["conv/bias"] * 1e-8).astype(np.float32)
    name = "point0/gradient/conv/bias"
    # Every entry is within what one device differs by, and all of them are longer in one direction.
    (unknown,) = [check for check in judged(given, {"conv/bias": 7e3}) if check.name == name]
    assert not unknown.passed
    assert unknown.rank == "size"
    (zero,) = [check for check in judged(given, {"conv/bias": 7e3}, moved=1.0) if check.name == name]
    assert zero.zero
    (beyond,) = [check for check in judged(given, {"conv/bias": 1e5}, moved=1.0) if check.name == name]
    assert not beyond.passed


def test_a_variable_whose_errors_rounding_hides_is_inconclusive_and_named_with_the_reason() -> None:
    given = gradients()
    twins = [a_run(given, {"conv/bias": factor}) for factor in (0.8, 1.1, 1.3)]
    found = compared(a_run(given), twins, a_run(given, {"conv/bias": 1.08}))
    assert verdict_of(found) == "inconclusive"
    report = Verification(tuple(found), 1, "batch=8", 128, Rounding(NOISE), 8)
    assert "not sensitive: conv/bias (rounding hides errors of its gradient" in report.line()
    (blunt,) = [each for each in report.variables if not each.is_verified]
    assert blunt.resolution > SENSITIVITY


@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.9, 0.94, 1.06, 1.1])
def test_errors_that_rounding_may_hide_are_detected_where_both_sides_are_near_and_only_there(factor: float) -> None:
    given = gradients()
    twins = [a_run(given, {"conv/bias": share}) for share in (-1.5, 2.0, 4.0)]
    near = compared(a_run(given), twins, a_run(given, {"conv/bias": 1.0001}))
    assert verdict_of(near) == "verified"
    known = {each.variable: each for each in sensitivities(near)}
    assert NEAR < known["conv/bias"].resolution < 1.1 * NEAR
    off = compared(a_run(given), twins, a_run(given, {"conv/bias": factor}))
    assert all(check.passed for check in off)
    assert verdict_of(off) == "inconclusive"


def test_a_gradient_that_is_0_everywhere_is_inconclusive() -> None:
    given = gradients()
    given["token/table"][:] = 0
    known = {each.variable: each for each in sensitivities(judged(given))}
    assert known["token/table"].why == "its gradient is 0 at all randomly perturbed weights"
    assert verdict_of(judged(given)) == "inconclusive"


def still(run: Arrays, path: str) -> Arrays:
    """Returns a run whose steps leave a variable as it was."""
    return run | {f"point0/end/{path}": run[f"point0/start/{path}"], f"final/{path}": run[f"initial/{path}"]}


def test_what_no_step_moves_is_not_verified() -> None:
    reference = still(a_run(gradients()), "conv/kernel")
    twins = [still(a_run(gradients(), noise=NOISE, seed=seed), "conv/kernel") for seed in (1, 2, 3)]
    found = compared(reference, twins, reference)
    assert all(check.passed for check in found)
    known = {each.variable: each.why for each in sensitivities(found)}
    assert known == {
        "conv/kernel": "no step from randomly perturbed weights changes it",
        "conv/bias": "",
        "token/table": "",
    }


def test_a_frozen_weight_is_equal_and_may_not_move() -> None:
    def frozen(run: Arrays) -> Arrays:
        kept = still(run, "conv/kernel")
        return {key: value for key, value in kept.items() if not key.endswith("gradient/conv/kernel")}

    reference = frozen(a_run(gradients()))
    twins = [frozen(a_run(gradients(), noise=NOISE, seed=seed)) for seed in (1, 2, 3)]
    assert verdict_of(compared(reference, twins, reference)) == "verified"
    mesh = reference | {"point0/end/conv/kernel": reference["point0/end/conv/kernel"] * np.float32(1 + 0.3 * NOISE)}
    (found,) = [check for check in compared(reference, twins, mesh) if not check.passed]
    assert (found.name, found.kind) == ("point0/end/conv/kernel", "update")


def test_without_a_point_nothing_is_verified() -> None:
    given = gradients()
    bare = {key: value for key, value in a_run(given).items() if not points.is_of_point(key)}
    assert verdict_of(compared(bare, [bare], bare)) == "inconclusive"
