"""Who is taken, who queues, who is refused and told when to come back."""

from dataclasses import replace

from cosyvoice_worker.scheduling.admission import HOLD_SECONDS, Bounds, Occupancy, Refusal, expired, may_start, refusal

BOUNDS = Bounds(max_running=4, max_queued=8, queue_seconds=10)
IDLE = Occupancy(running=0, queued=0, due_seconds=0, capacity=5)
FULL = Occupancy(running=4, queued=8, due_seconds=45, capacity=5)


def test_an_idle_worker_takes_anything() -> None:
    assert refusal(IDLE, BOUNDS) is None
    assert may_start(IDLE, BOUNDS, waited=0, stuttering=False)


def test_a_full_queue_refuses_and_says_when_the_work_will_be_done() -> None:
    assert refusal(replace(FULL, queued=7), BOUNDS) is None
    assert refusal(FULL, BOUNDS) == Refusal("QueueFull", retry_after=9.0)
    assert refusal(replace(FULL, capacity=0.1), BOUNDS) == Refusal("QueueFull", retry_after=60.0)
    assert refusal(replace(FULL, capacity=500), BOUNDS) == Refusal("QueueFull", retry_after=1.0)


def test_where_the_work_that_is_due_takes_longer_than_the_deadline_a_new_request_is_refused_at_once() -> None:
    slow = Occupancy(running=4, queued=1, due_seconds=51, capacity=5)
    assert refusal(slow, BOUNDS) == Refusal("QueueFull", retry_after=11.0)
    assert refusal(replace(slow, running=1, queued=0), BOUNDS) is not None, "a free place does not make it faster"
    assert refusal(replace(slow, due_seconds=50), BOUNDS) is None
    assert refusal(replace(IDLE, due_seconds=51), BOUNDS) is None, "an idle worker takes anything"
    assert expired(BOUNDS, waited=10.1)
    assert not expired(BOUNDS, waited=9.9)


def test_draining_refuses_all() -> None:
    assert refusal(replace(IDLE, draining=True), BOUNDS) == Refusal("Draining", 1.0)


def test_memory_guard_makes_new_work_wait_but_never_blocks_an_idle_worker() -> None:
    guarded = replace(FULL, running=2, queued=2, memory_guard=True)
    assert not may_start(guarded, BOUNDS, waited=100, stuttering=False)
    assert may_start(replace(guarded, running=0), BOUNDS, waited=0, stuttering=False)
    refused = refusal(replace(guarded, queued=10), BOUNDS)
    assert refused is not None
    assert refused.reason == "MemoryGuard"


def test_audio_that_nobody_reads_refuses_new_work_even_where_nothing_runs() -> None:
    assert refusal(replace(IDLE, unread_bytes=BOUNDS.max_unread_bytes - 1), BOUNDS) is None
    assert refusal(replace(IDLE, unread_bytes=BOUNDS.max_unread_bytes), BOUNDS) == Refusal("MemoryGuard", 1.0)


def test_a_playing_stream_that_would_stutter_goes_before_a_new_one_for_a_while() -> None:
    busy = replace(FULL, running=3)
    assert may_start(busy, BOUNDS, waited=0, stuttering=False)
    assert not may_start(busy, BOUNDS, waited=0, stuttering=True)
    assert may_start(busy, BOUNDS, waited=HOLD_SECONDS, stuttering=True)
    assert not may_start(FULL, BOUNDS, waited=HOLD_SECONDS, stuttering=False), "all places are taken"
