"""Text that arrives in pieces is handed on sentence by sentence, and nothing of it is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosyvoice_worker.engine.frontend.arriving import ArrivingText


def handed_on(pieces: list[str]) -> list[str]:
    text = ArrivingText()
    out = [text.add(piece) for piece in pieces]
    return [part for part in [*out, text.rest()] if part]


def letters(text: str) -> list[str]:
    """As a language model gives it, at its worst."""
    return handed_on(list(text))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there. How are you? Fine", ["Hello there.", " How are you?", " Fine"]),
        ("It costs 3.14 euros. Yes.", ["It costs 3.14 euros.", " Yes."]),
        ('He said "no!" and left. Then', ['He said "no!"', " and left.", " Then"]),
        ("Mr. Smith met J. Doe, e.g. at noon. So", ["Mr. Smith met J. Doe, e.g. at noon.", " So"]),
        ("你好。今天怎么样？很好", ["你好。", "今天怎么样？", "很好"]),
        ("A heading\n\nA text", ["A heading\n\n", "A text"]),
    ],
)
def test_a_sentence_is_handed_on_when_it_is_complete(text: str, sentences: list[str]) -> None:
    assert letters(text) == sentences


def test_one_piece_may_hold_several_sentences() -> None:
    assert handed_on(["One. Two. Thr", "ee. Four"]) == ["One. Two.", " Three.", " Four"]


def test_text_without_an_end_is_handed_on_at_a_blank() -> None:
    parts = letters("word " * 200)
    assert len(parts) > 1
    assert all(part.endswith(" ") and len(part) <= 405 for part in parts)


@given(st.lists(st.text(alphabet='ab. ,!?。\n"3', max_size=12)))
def test_every_character_comes_out_once_and_in_order(pieces: list[str]) -> None:
    assert "".join(handed_on(pieces)) == "".join(pieces)
