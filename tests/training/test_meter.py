from runner.train.meter import Meter


def test_a_rate_needs_ten_measured_steps_and_ignores_calls_that_compile() -> None:
    meter = Meter()
    for _ in range(3):
        meter.call_done(100)
    assert (meter.steps, meter.rate) == (0, 0.0)
    meter.call_done(9)
    assert meter.rate == 0.0
    meter.call_done(1)
    assert meter.rate > 0.0
