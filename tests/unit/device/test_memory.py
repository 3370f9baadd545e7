"""The memory guard's figure."""

import torch

from cosyvoice_worker.device.memory import above_guard, used_percent

GIB = 1 << 30


def test_what_the_allocator_keeps_for_later_is_not_in_use() -> None:
    assert used_percent(free=2 * GIB, total=16 * GIB, held_free=0) == 87.5
    assert used_percent(free=2 * GIB, total=16 * GIB, held_free=6 * GIB) == 50.0


def test_a_cpu_has_no_guard() -> None:
    assert not above_guard(torch.device("cpu"), 1)


def test_the_guard_counts_the_whole_device_but_not_what_the_allocator_holds_free(monkeypatch) -> None:
    held = 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * GIB, 16 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 8 * GIB - held)
    assert above_guard(torch.device("cuda", 0), 85)
    assert not above_guard(torch.device("cuda", 0), 88)
    held = GIB
    assert not above_guard(torch.device("cuda", 0), 85)
