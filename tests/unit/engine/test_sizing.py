"""How much one engine takes on."""

import pytest

from cosyvoice_worker.device.select import DeviceError
from cosyvoice_worker.engine.blocks import blocks_for
from cosyvoice_worker.engine.sizing import CACHE_SHARE, LONGEST_SENTENCE, affordable_blocks


def test_the_cache_keeps_to_its_share_of_the_free_memory() -> None:
    assert affordable_blocks(2048, size=1 << 20, free=16 << 30) == 2048, "there is room for all"
    assert affordable_blocks(2048, size=1 << 20, free=2 << 30) == int(2048 * CACHE_SHARE)


def test_a_card_without_room_for_one_sentence_is_told_before_it_serves() -> None:
    least = blocks_for(LONGEST_SENTENCE)
    with pytest.raises(DeviceError, match=f"need {least}: use a larger card"):
        affordable_blocks(2048, size=1 << 20, free=int((least - 1) / CACHE_SHARE) << 20)
