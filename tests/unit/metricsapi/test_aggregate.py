"""The rule for silent workers, case by case."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable, Pool, Reading, Value, Worker, pool_value

NOW = 1_000_000.0
MAX_AGE = 12.0
TARGET = 0.8


def answering(load: float, *, age: float = 1, name: str = "w", gpu: float | None = 0.5) -> Worker:
    return Worker(name, Reading(NOW - age, {"gpu_load": load, "gpu_utilization": gpu, "gpu_memory": 0.1}))


def silent(name: str = "mute") -> Worker:
    return Worker(name, None)


def pool(*workers: Worker, wanted: int | None = None, targets: dict[str, float] | None = None) -> Pool:
    targets = {"gpu_load": TARGET} if targets is None else targets
    return Pool("speech", "narrator-t4", len(workers) if wanted is None else wanted, targets, workers)


def value(of: Pool, metric: str = "gpu_load") -> Value:
    return pool_value(of, metric, now=NOW, max_age=MAX_AGE)


def test_the_value_is_the_sum_over_the_workers_in_thousandths() -> None:
    assert value(pool(answering(0.5), answering(1.2))).milli == 1700


def test_idle_workers_give_an_explicit_zero() -> None:
    assert value(pool(answering(0.0), answering(0.0))).milli == 0


def test_the_value_is_as_old_as_its_oldest_reading() -> None:
    assert value(pool(answering(1, age=2), answering(1, age=7))).taken_at == NOW - 7


def test_a_worker_that_never_answered_counts_as_exactly_at_its_target() -> None:
    assert value(pool(answering(0.1), silent())).milli == 900


def test_a_worker_whose_reading_is_stale_counts_as_exactly_at_its_target() -> None:
    assert value(pool(answering(0.1), answering(5.0, age=MAX_AGE + 1))).milli == 900


def test_a_reading_is_fresh_up_to_its_limit() -> None:
    assert value(pool(answering(5.0, age=MAX_AGE))).milli == 5000


@pytest.mark.parametrize(("workers", "mute"), [(1, 1), (3, 2), (4, 3), (100, 51)])
def test_more_than_half_silent_is_an_error_and_no_number(workers: int, mute: int) -> None:
    of = pool(*[silent(f"m{i}") for i in range(mute)], *[answering(1)] * (workers - mute))
    with pytest.raises(MetricUnavailable, match=f"{mute} of {workers} workers of narrator-t4 did not answer") as error:
        value(of)
    assert error.value.status == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize(("workers", "mute"), [(2, 1), (4, 2), (100, 50)])
def test_half_silent_is_still_a_number(workers: int, mute: int) -> None:
    of = pool(*[silent()] * mute, *[answering(1)] * (workers - mute))
    assert value(of).milli == 800 * mute + 1000 * (workers - mute)


def test_the_error_names_a_few_silent_workers_however_many_there_are() -> None:
    with pytest.raises(MetricUnavailable, match=r": m0, m1, m10 and 17 more$"):
        value(pool(*[silent(f"m{i}") for i in range(20)]))


def test_no_worker_wanted_and_none_there_is_an_explicit_zero() -> None:
    assert value(pool(wanted=0)) == Value(0, NOW)


def test_workers_wanted_but_none_started_is_an_error() -> None:
    with pytest.raises(MetricUnavailable, match="none of the 3 workers of narrator-t4 has started"):
        value(pool(wanted=3))


def test_workers_that_still_load_add_nothing() -> None:
    assert value(pool(answering(2.0), wanted=4)).milli == 2000


def test_workers_still_there_count_when_none_is_wanted_any_more() -> None:
    assert value(pool(answering(2.0), wanted=0)).milli == 2000


def test_a_silent_worker_without_a_known_target_is_an_error_that_says_so() -> None:
    with pytest.raises(MetricUnavailable, match="names no target for gpu_load"):
        value(pool(answering(1.0), silent(), targets={}))


def test_without_silent_workers_no_target_is_needed() -> None:
    assert value(pool(answering(1.0), targets={})).milli == 1000


def test_gpu_utilization_of_workers_without_a_gpu_is_an_error_that_says_so() -> None:
    with pytest.raises(
        MetricUnavailable, match="worker w of narrator-t4 cannot measure gpu_utilization: it has no GPU"
    ):
        value(pool(answering(1.0, gpu=None)), "gpu_utilization")


def test_gpu_utilization_is_summed_where_there_are_gpus() -> None:
    assert value(pool(answering(1.0, gpu=0.25), answering(1.0, gpu=0.5)), "gpu_utilization").milli == 750


@given(loads=st.lists(st.floats(0, 3), min_size=1, max_size=40), mute=st.integers(0, 40))
def test_silent_workers_never_change_what_the_autoscaler_asks_for_the_others(loads: list[float], mute: int) -> None:
    """With k silent among n, the HPA's `sum / target` is that of the answering ones plus exactly k."""
    mute = min(mute, len(loads))
    alone = value(pool(*[answering(load) for load in loads])).milli
    together = value(pool(*[answering(load) for load in loads], *[silent()] * mute)).milli
    assert abs(together - alone - 800 * mute) <= 1
