"""The memory guard's figure."""

import torch

from cosyvoice_worker.device.memory import above_guard, used_percent

GIB = 1 << 30


def test_what_the_allocator_keeps_for_later_is_not_in_use() -> None:
    assert used_percent(free=2 * GIB, total=16 * GIB, held_free=0) == 87.5
    assert used_percent(free=2 * GIB, total=16 * GIB, held_free=6 * GIB) == 50.0


def test_a_cpu_has_no_guard() -> None:
    assert not above_guard(torch.device("cpu"), 1)
