"""Whether the device's memory is fuller than the guard allows."""

from __future__ import annotations

import torch


def above_guard(device: torch.device, percent: int) -> bool:
    """Whether more than `percent` of the device is really in use. Always False on a CPU, whose memory is the node's."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    held_free = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return used_percent(free=free, total=total, held_free=held_free) > percent


def used_percent(*, free: int, total: int, held_free: int) -> float:
    """Bytes in use over the total, in percent. What the allocator holds but does not use (`held_free`) is not in use:
    it is there for the next request, and counting it would keep the guard up for ever after one peak."""
    return 100.0 * (total - free - held_free) / total
