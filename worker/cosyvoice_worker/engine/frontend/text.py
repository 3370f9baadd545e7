"""Written text -> the sentences that are spoken, one after another.

Clean (nothing that the model would take for a command, no markup, no emoji) -> normalise (numbers, dates, units become
words; Chinese and English only) -> split. The rules of the official frontend are followed where they help; where they
harm we deviate, and docs/decisions/0005-text-frontend.md lists each case. Every step takes time linear in the text.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

import inflect
from wetext import Normalizer

# --- clean ----------------------------------------------------------------------------------------------------------

_CONTROL_TOKEN = re.compile(r"<\|[^|<>]{0,64}\|>")
_HTML_TAG = re.compile(
    r"</?(?:a|b|i|u|em|br|p|hr|li|ul|ol|tr|td|th|div|img|pre|sub|sup|code|span|small|table|h[1-6]|blockquote)"
    r"(?:\s[^<>]{0,300})?/?>",
    re.IGNORECASE,
)
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()\s]{1,500}\)")
_CODE_FENCE = re.compile(r"^ {0,3}(?:```|~~~)[^\n`]*$", re.MULTILINE)
_BLOCK_MARK = re.compile(r"^[ \t]{0,12}(?:#{1,6}[ \t]+|>[ \t]?|[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?)", re.MULTILINE)
_RULE_LINE = re.compile(r"^[ \t]*[-*_=|:][-*_=|: \t]{2,}$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^[ \t]*\|(.*)$", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<![0-9A-Za-z*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![0-9A-Za-z*])|__|~~")
_PARAGRAPH_END = re.compile(r"[ \t]*\n[ \t]*\n\s*")
_REPEATED_MARK = re.compile(r"([^\w\s] ?)\1{3,}")

_FULL_WIDTH = {0xFF01 + i: 0x21 + i for i in range(94) if chr(0x21 + i).isalnum()} | {0x3000: 0x20}
_ENDS = ".?!;:。？！；：…"


def _is_picture(char: str) -> bool:
    """Emoji, dingbats, arrows, variation selectors, joiners: nothing a voice can say. (Units such as ° and ㎡ stay.)"""
    code = ord(char)
    if code < 0x200B:
        return False
    return (
        0x2190 <= code <= 0x21FF
        or 0x2300 <= code <= 0x2BFF
        or (code >= 0x1F000 and unicodedata.category(char) in ("So", "Sk", "Cn"))
        or code in (0x200B, 0x200C, 0x200D, 0x2060, 0x20E3, 0xFE0E, 0xFE0F, 0xFEFF)
        or 0xE0000 <= code <= 0xE007F
    )


def _clean(text: str) -> str:
    text = "".join(
        " " if char not in "\n" and unicodedata.category(char) in ("Cc", "Cs", "Co", "Zs", "Zl", "Zp") else char
        for char in unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).translate(_FULL_WIDTH)
        if not _is_picture(char) and unicodedata.category(char) != "Cf"
    )
    text = _CONTROL_TOKEN.sub(" ", text).replace("<|", " ").replace("|>", " ").replace("\\", " ")
    text = re.sub(r"[ \t]+", " ", text)
    text = _CODE_FENCE.sub("\n", text)
    text = _RULE_LINE.sub("\n", text)
    text = _TABLE_ROW.sub(
        lambda row: ", ".join(cell for cell in map(str.strip, row[1].split("|")) if cell) + "\n", text
    )
    text = _LINK.sub(r"\1", text)
    text = _HTML_TAG.sub(" ", text)
    text = _end_marked_lines(text)
    text = _EMPHASIS.sub("", text).replace("`", "")
    text = _REPEATED_MARK.sub(r"\1\1\1", text)
    return _end_paragraphs(text).strip()


def _end_marked_lines(text: str) -> str:
    """Headings and list items are sentences: the mark goes, the line ends in a full stop."""
    lines = []
    for line in text.split("\n"):
        spoken = _BLOCK_MARK.sub("", line)
        lines.append(_ended(spoken) if spoken != line else line)
    return "\n".join(lines)


def _end_paragraphs(text: str) -> str:
    paragraphs = [part for part in _PARAGRAPH_END.split(text) if part.strip()]
    return "\n".join([_ended(part) for part in paragraphs[:-1]] + paragraphs[-1:])


def _ended(text: str) -> str:
    text = text.rstrip()
    if not text or text[-1] in _ENDS or not any(map(str.isalnum, text)):
        return text
    return text + ("。" if _HAN.search(text) else ".")


# --- which rules apply ----------------------------------------------------------------------------------------------

_HAN = re.compile(r"[\u4e00-\u9fff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_FOREIGN_LETTER = re.compile(r"[^\W\d_a-zA-Z]")
_NON_LATIN_LETTER = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")
_ENGLISH_WORD = re.compile(r"\b(?:the|and|of|with|this|that|are|you|for|was|have|it's|from)\b", re.IGNORECASE)
_CHINESE = ("zh", "cmn", "yue", "wuu", "nan", "hak", "gan", "hsn")


def _rules(text: str, language: str) -> str:
    """`zh`, `en`, or empty for languages whose text the two normalisers would damage."""
    said = re.split(r"[-_]", language.strip().lower())[0]
    if said in _CHINESE:
        return "zh"
    if said not in ("", "en"):
        return ""
    if _KANA_OR_HANGUL.search(text):
        return ""
    if _HAN.search(text):
        return "zh"
    if said == "en":
        return "en"
    if _NON_LATIN_LETTER.search(text):
        return ""
    if _FOREIGN_LETTER.search(text) and not _ENGLISH_WORD.search(text):
        return ""
    return "en"


# --- normalise ------------------------------------------------------------------------------------------------------

_PIECE = 240
"""Characters given to wetext at once. Its transducers take quadratic time in what they get (4,000 digits: 2 s)."""
_PIECE_END = re.compile(r"[.!?;。！？；]\s+|[。！？；\n]")

_DIGITS = re.compile(r"[0-9]+")
_LONGEST_NUMBER = 15
"""Digits that are read as one number; a longer run is read digit by digit."""
_CORNER_MARKS = {"²": "平方", "³": "立方"}


@lru_cache(maxsize=2)
def _normalizer(rules: str) -> Normalizer:
    return Normalizer(lang=rules, operator="tn")


_INFLECT = inflect.engine()
_INFLECT_LOCK = threading.Lock()
"""The engine keeps state while it reads a number, and every request is normalised in a thread of its own."""


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE:
        window = text[start : start + _PIECE]
        ends = [match.end() for match in _PIECE_END.finditer(window)]
        cut = ends[-1] if ends and ends[-1] > _PIECE // 4 else window.rfind(" ") + 1 or _PIECE
        yield window[:cut]
        start += cut
    yield text[start:]


def _wetext(text: str, rules: str) -> str:
    """wetext over pieces, whitespace at their ends kept; what its grammar has no path for stays as it is written."""

    def normalized(piece: str) -> str:
        core = piece.strip()
        if not core:
            return piece
        try:
            spoken: str = _normalizer(rules).normalize(core)
        except AssertionError:  # no path through the transducer, e.g. for `#`: word by word, then
            spoken = " ".join(normalized(word) for word in core.split(" ")) if " " in core else core
        head, tail = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
        return head + spoken.replace('\\"', '"').replace("\\", " ") + tail

    return "".join(map(normalized, _pieces(text)))


def _normalize_chinese(text: str) -> str:
    text = _wetext(text, "zh").replace("\n", "")
    # a blank stays only between two words in Latin letters
    text = re.sub(r"(?<![\x21-\x7e]) +| +(?![\x21-\x7e])", "", text)
    for mark, words in _CORNER_MARKS.items():
        text = text.replace(mark, words)
    text = re.sub(r"(?<![A-Za-z0-9])\.|\.(?![A-Za-z0-9])", "。", text)
    text = text.replace(" - ", "，").replace("——", " ").translate({ord(c): None for c in "（）【】"})
    return re.sub(r"[，,、]+$", "。", text)


def _normalize_english(text: str) -> str:
    text = re.sub(r"#(?=[0-9])", "number ", text.replace("\n", " "))
    text = " ".join(_wetext(text, "en").split())
    return _DIGITS.sub(lambda digits: _number_words(digits[0]), text)


def _number_words(digits: str) -> str:
    if len(digits) > _LONGEST_NUMBER:
        digits = " ".join(digits)
    with _INFLECT_LOCK:
        return " ".join(str(_INFLECT.number_to_words(number)) for number in digits.split(" "))


# --- split ----------------------------------------------------------------------------------------------------------

_MOST, _ENOUGH, _TOO_SHORT = 80, 60, 20
"""Units of a sentence: join sentences while they stay within MOST, unless there are ENOUGH already; a last one that is
TOO_SHORT joins its predecessor. The official values; the unit is a character in Chinese and a text token elsewhere."""
_LONGEST = 200
"""A single sentence that is longer is cut at a comma or a blank, or else anywhere. (The official code never cuts, and
speaks for minutes without a point to breathe.)"""

_FULL_STOPS = {"zh": "。？！；：、.?!;", "en": ".?!;:", "": ".?!;:。？！；：…؟۔।॥"}
_CLOSING_QUOTES = "\"”'’」』)）"


def _split(text: str, rules: str, units: Callable[[str], int]) -> list[str]:
    stops = _FULL_STOPS[rules]
    if text[-1] not in stops:
        text += "。" if rules == "zh" else "."
    parts = [piece for part in _at_stops(text, stops) for piece in _capped(part, units)]
    sentences: list[str] = []
    current, current_units = "", 0
    for part in parts:
        part_units = units(part)
        if current_units + part_units > _MOST and current_units > _ENOUGH:
            sentences.append(current)
            current, current_units = "", 0
        current, current_units = current + part, current_units + part_units
    if current and sentences and current_units < _TOO_SHORT:
        sentences[-1] += current
    elif current:
        sentences.append(current)
    return sentences


def _at_stops(text: str, stops: str) -> Iterator[str]:
    """Parts of `text`, each up to and with a full stop and the quote that closes after it; `3.14` has no stop."""
    start = 0
    for match in re.finditer(f"[{re.escape(stops)}]+[{re.escape(_CLOSING_QUOTES)}]*", text):
        inside_word = match[0] in (".", ":") and match.end() < len(text) and text[match.end()].isalnum()
        if inside_word and match.start() > 0 and text[match.start() - 1].isascii() and text[match.end()].isascii():
            continue
        yield text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def _capped(part: str, units: Callable[[str], int]) -> Iterator[str]:
    length = units(part)
    if length <= _LONGEST:
        yield part
        return
    size = max(1, len(part) * _MOST // length)
    start = 0
    while len(part) - start > size:
        window = part[start : start + size]
        cut = max(window.rfind(mark) + 1 for mark in ",，、")
        if cut < size // 2:
            cut = window.rfind(" ") + 1
        if cut < size // 4:
            cut = size
        yield part[start : start + cut]
        start += cut
    yield part[start:]


# --- together -------------------------------------------------------------------------------------------------------


def sentences(text: str, language: str, units: Callable[[str], int]) -> list[str]:
    """What is spoken for `text`, in order; empty when it holds nothing that can be said.

    `language` is ISO 639-1 or empty (told from the text). `units` counts the text tokens of a string.
    """
    cleaned = _clean(text)
    if not speakable(cleaned):
        return []
    rules = _rules(cleaned, language)
    if rules == "zh":
        spoken = _normalize_chinese(cleaned)
    elif rules == "en":
        spoken = _normalize_english(cleaned)
    else:
        spoken = " ".join(cleaned.split())
    if not speakable(spoken):  # normalisation may leave nothing
        return []
    measure = len if rules == "zh" else units
    return [sentence for sentence in _split(spoken, rules, measure) if speakable(sentence)]


def speakable(text: str) -> bool:
    """Whether a voice can say any of it: a letter or a digit of any script, once control tokens are gone."""
    return any(map(str.isalnum, _CONTROL_TOKEN.sub("", text)))


def without_control_tokens(text: str) -> str:
    """For words of a client that reach the model without normalisation (instructions, words of a recording)."""
    visible = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cs"))
    return _CONTROL_TOKEN.sub(" ", visible).replace("<|", " ").replace("|>", " ")
