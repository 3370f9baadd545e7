"""Demand and capacity on a clock that the test turns."""

import pytest

from cosyvoice_worker.scheduling.meters import CapacityMeter, DemandMeter, SpeechRate


def test_idle_is_exactly_zero_and_becomes_so_again() -> None:
    meter = DemandMeter()
    assert meter.demand(0.0, 0.0) == 0.0
    meter.accepted(0.0, 12.0, "")
    meter.refused(0.0, 5.0, "")
    assert meter.demand(29.9, 0.0) > 0
    assert meter.demand(30.0, 0.0) == 0.0


def test_one_listener_is_one_stream() -> None:
    meter = DemandMeter()
    for second in range(0, 300, 5):
        meter.accepted(float(second), 5.0, "")
    assert meter.demand(299.0, 0.0) == pytest.approx(1.0)


def test_an_estimate_is_corrected_when_more_is_known() -> None:
    meter = DemandMeter()
    asked = meter.accepted(0.0, 30.0, "")
    asked.seconds = 15.0
    assert meter.demand(1.0, 0.0) == 0.5


def test_backlog_is_wanted_gone_within_thirty_seconds() -> None:
    assert DemandMeter().demand(0.0, 60.0) == 2.0


def test_what_is_refused_is_demanded_too_but_retries_of_one_client_once() -> None:
    meter = DemandMeter()
    for second in range(10):
        meter.refused(float(second), 30.0, "client-1")
    assert meter.demand(9.0, 0.0) == 1.0
    meter.refused(9.0, 30.0, "client-2")
    meter.refused(9.0, 30.0, "")
    meter.refused(9.0, 30.0, "")
    assert meter.demand(9.0, 0.0) == 4.0
    assert meter.demand(38.9, 0.0) == 4.0, "counted from the last retry"
    assert meter.demand(39.1, 0.0) == 0.0


def test_a_refused_request_whose_retry_is_taken_asks_once() -> None:
    meter = DemandMeter()
    meter.refused(0.0, 30.0, "client-1")
    meter.refused(0.0, 30.0, "client-2")
    meter.refused(0.0, 30.0, "")
    assert meter.demand(1.0, 0.0) == 3.0
    meter.accepted(1.0, 30.0, "client-1")
    assert meter.demand(1.0, 0.0) == 3.0
    meter.accepted(1.0, 30.0, "")
    assert meter.demand(1.0, 0.0) == 4.0, "without a key nothing tells that it is a retry"
    assert meter.demand(30.5, 0.0) == 2.0


def run(
    meter: CapacityMeter, start: int, seconds: int, rate: float, *, busy: float = 1.0, pressed: bool = True
) -> None:
    for second in range(start, start + seconds):
        meter.step(second + 1.0, busy, rate, pressed)


def test_capacity_is_the_seed_then_the_calibration() -> None:
    meter = CapacityMeter(50.0, now=0.0)
    assert (meter.value, meter.measured) == (50.0, False)
    meter.calibrate(20.0)
    assert (meter.value, meter.measured) == (20.0, True)
    assert CapacityMeter(0.0, now=0.0).value > 0


def test_saturated_windows_move_it_smoothly_to_the_truth() -> None:
    meter = CapacityMeter(50.0, now=0.0)
    run(meter, 0, 10, rate=20.0)
    assert meter.value == pytest.approx(41.0)
    run(meter, 10, 190, rate=20.0)
    assert meter.value == pytest.approx(20.0, rel=0.01)
    assert meter.measured


def test_a_busy_device_without_pressure_does_not_lower_it() -> None:
    meter = CapacityMeter(50.0, now=0.0)
    run(meter, 0, 100, rate=2.0, pressed=False)
    run(meter, 100, 100, rate=2.0, busy=0.5)
    assert (meter.value, meter.measured) == (50.0, False)


def test_what_a_busy_engine_reaches_raises_it_smoothly() -> None:
    meter = CapacityMeter(5.0, now=0.0)
    run(meter, 0, 10, rate=8.0, busy=0.95, pressed=False)
    assert meter.value == pytest.approx(5.9)
    assert meter.measured


def test_audio_that_was_computed_earlier_does_not_raise_it() -> None:
    meter = CapacityMeter(5.0, now=0.0)
    run(meter, 0, 10, rate=0.5, busy=0.5, pressed=False)
    run(meter, 10, 10, rate=9.5, busy=0.5, pressed=False)
    assert (meter.value, meter.measured) == (5.0, False)


def test_the_length_of_speech_is_learnt() -> None:
    rate = SpeechRate()
    rate.learn(10, 5.0)
    assert rate.estimate(20) == pytest.approx(10.0)
    for _ in range(200):
        rate.learn(10, 2.0)
    assert rate.estimate(20) == pytest.approx(4.0, rel=0.01)
