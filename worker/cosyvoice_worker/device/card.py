"""Is the GPU in this container the card that the pool was sized for?"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class _Card:
    product: str
    """Regular expression over NVML's product name."""
    memory_gib: tuple[float, float] = (0, float("inf"))
    """Memory of the whole device, from, to: tells the two A100 apart."""


# Product names as NVML writes them: "Tesla T4", "NVIDIA A10G", "NVIDIA A100-SXM4-40GB"; older drivers drop the vendor.
# Cards that a user adds to the catalogue have no row here and are not checked.
_CARDS = {
    "T4": _Card(r"\bT4\b"),
    "A10": _Card(r"\bA10\b"),
    "A10G": _Card(r"\bA10G\b"),
    "A100": _Card(r"\bA100\b", (0, 60)),
    "A100-80GB": _Card(r"\bA100\b", (60, 200)),
    "L4": _Card(r"\bL4\b"),
    "L40S": _Card(r"\bL40S\b"),
    "H100": _Card(r"\bH100\b"),
}


def card_mismatch(card: str, product: str, memory_bytes: int) -> str | None:
    """Why a GPU is not `card`, as a sentence for the user; None when it is, or when the card is not one of ours."""
    expected = _CARDS.get(card)
    if expected is None:
        return None
    low, high = expected.memory_gib
    if re.search(expected.product, product) and low <= memory_bytes / _GIB < high:
        return None
    return (
        f"this is a {product} with {memory_bytes / _GIB:.0f} GiB, the pool says {card}: "
        f"its streams, batches and precision were chosen for that card. Mend the pool's `card`, or the node's labels"
    )
