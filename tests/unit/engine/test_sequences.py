"""The state of a sentence."""

from cosyvoice_worker.engine.sequences import LONGEST_SILENCE
from tests.unit.engine.test_scheduler import job


def test_a_long_silence_is_cut_short_to_the_ear_but_not_to_the_model() -> None:
    sentence = job().sentences[0]
    said = [9, *[1, 2] * 5, 9, 1, 9]
    for token in said:
        sentence.take(token, frozenset((1, 2)))
    assert sentence.tokens == said
    assert sentence.heard == [9, *([1, 2] * 5)[:LONGEST_SILENCE], 9, 1, 9]


def test_what_is_in_hand_is_what_was_delivered_less_what_was_played() -> None:
    made = job(sentences=2, arrived=10.0)
    assert made.in_hand(12.0) == -2.0, "nothing yet: the listener has waited two seconds"
    made.first_audio, made.delivered_seconds = 12.0, 3.0
    assert made.in_hand(13.0) == 2.0
    made.sentences[0].heard = [5] * 50
    made.sentences[0].boundary = 25
    assert made.in_hand_at(made.sentences[0], 13.0) == 2.0
    assert made.in_hand_at(made.sentences[1], 13.0) == 3.0, "a second of the first sentence is still to come"
