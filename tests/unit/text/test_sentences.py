"""Text as people send it becomes the sentences that are spoken."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_worker.engine.frontend import text as frontend
from cosyvoice_worker.engine.frontend.text import sentences, speakable

OFFICIAL = json.loads((Path(__file__).parent / "official.json").read_text())
"""Recorded from the official frontend (wetext 0.1.8); `sentences` is null where it raised."""

DEVIATIONS = {
    'Dr. Smith lives at 10 Downing St. He said: "Go home!" Then left.': [
        'doctor Smith lives at ten Downing Street He said: "Go home!" Then left.'
    ],  # the official result has a backslash before each quote
    "": [],  # official: one empty sentence
    "   ": [],  # official: IndexError
    "带有<|endofprompt|>特殊标记的文本123": ["带有特殊标记的文本一百二十三。"],  # official: the token reaches the model
    "😀 emoji 😀 only english 5": ["emoji only english five."],  # official: emoji become byte tokens
}


def spoken(text: str, language: str = "") -> list[str]:
    return sentences(text, language, len)


@pytest.mark.parametrize("case", OFFICIAL, ids=[case["text"][:24] or "empty" for case in OFFICIAL])
def test_the_official_frontend_agrees_except_where_its_result_harms(case):
    assert spoken(case["text"]) == DEVIATIONS.get(case["text"], case["sentences"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The server is ready, and 25 requests wait.", ["The server is ready, and twenty five requests wait."]),
        ("Ticket #5 costs $3.", ["Ticket number five costs three dollars."]),
        ("Card 12345678901234567890", None),
        ("café costs 5 and the bill is paid", ["café costs five and the bill is paid."]),
    ],
)
def test_no_digit_is_left_in_english(text, expected):
    result = spoken(text)
    assert not any(char.isdigit() for char in "".join(result))
    assert expected is None or result == expected


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Ich habe 3 Äpfel und 3.14 Birnen.", ""),
        ("Ich habe 3 Hunde.", "de"),
        ("J'ai 2 chats à la maison.", ""),
        ("日本語で3つです。", ""),
        ("У меня 3 яблока.", ""),
        ("사과 3개가 있어요.", ""),
    ],
)
def test_other_languages_are_left_as_they_are_written(text, language):
    assert spoken(text, language) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "a <|endofprompt|> b",
        "<|im_start|>system",
        "<|<|x|>|>",
        "<\u200b|endofprompt|>",
        "<|" * 50 + "x" + "|>" * 50,
        "＜|endofprompt|＞",
    ],
)
def test_control_tokens_never_reach_the_model(text):
    result = "".join(spoken(text))
    assert "<|" not in result
    assert "|>" not in result


def test_the_models_own_marks_for_laughter_and_stress_stay():
    assert spoken("[laughter]好<strong>的</strong>") == ["[laughter]好<strong>的</strong>。"]


def test_markdown_is_read_as_what_it_says():
    text = "# Title\n\n- first item\n- **second** `item`\n\nSee [the page](http://a.b/c) and 2*3.\n\n```python\nx\n```"
    assert spoken(text) == ["Title. first item. second item. See the page and two times three. x."]


@pytest.mark.parametrize("text", ["", "   ", "!!!", "😀", "，，，", "<|endofprompt|>", "---\n***", "\u200b"])
def test_what_cannot_be_said_gives_no_sentence(text):
    assert not speakable(text)
    assert spoken(text) == []


@pytest.mark.parametrize(("rules", "text"), [("_normalize_english", "hm"), ("_normalize_chinese", "呃")])
def test_what_normalisation_leaves_nothing_of_gives_no_sentence(monkeypatch, rules, text):
    monkeypatch.setattr(frontend, rules, lambda text: "")
    assert spoken(text) == []


def test_numbers_that_are_read_at_the_same_time_do_not_mix():
    numbers = ["123456789012345", "999999999999999", "111222333444555"] * 100
    alone = [frontend._number_words(number) for number in numbers]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(frontend._number_words, numbers)) == alone
    finally:
        sys.setswitchinterval(interval)


def test_sentences_are_joined_up_to_eighty_units_and_a_short_last_one_joins_its_predecessor():
    text = "This sentence has about forty characters. " * 4 + "Short one."
    result = spoken(text)
    assert len(result) > 1
    assert result[-1].endswith("Short one.")
    assert "".join(result).split() == text.split()


def test_a_sentence_without_a_stop_is_cut_at_a_comma_or_a_blank():
    result = spoken("word " * 300)
    assert all(len(sentence) <= 200 for sentence in result)
    assert " ".join("".join(result).split()).rstrip(".").rstrip() == ("word " * 300).strip()


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "a",
        "#",
        "<|",
        "*",
        "[a](",
        "|",
        "，",
        "# ",
        "\n",
        "1,",
        ". ",
        "<b ",
        "中1",
        "`~~__",
        "a.b@",
        "1-2/",
        'é\t\\"',
    ],
)
def test_time_is_linear_in_the_text(unit):
    def seconds(characters: int) -> float:
        text = (unit * characters)[:characters] + "a"
        started = time.process_time()
        sentences(text, "", len)
        return time.process_time() - started

    seconds(100)
    assert seconds(2000) < max(12 * seconds(500), 0.3)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.sampled_from(["", "zh", "en", "de", "xx-YY"]))
def test_any_text_gives_sentences_that_can_be_said_or_none(text, language):
    result = sentences(text, language, len)
    assert all(speakable(sentence) for sentence in result)
    assert "<|" not in "".join(result)
