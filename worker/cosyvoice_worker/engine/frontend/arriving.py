"""Text that arrives in pieces: hands on what is complete, so that it is spoken while the rest is being written."""

from __future__ import annotations

import re
from typing import Final

_CLOSING: Final = "[\"”'’」』)）]*"
_ENDS: Final = re.compile(rf"[。？！；…؟۔।॥]+{_CLOSING}|[.?!]+{_CLOSING}(?=\s)|\n\s*\n")
"""After these a sentence is complete. A full stop of ASCII needs a blank behind it: `3.` may become `3.14`."""
_NO_END: Final = re.compile(r"\b(?:Mrs?|Ms|Dr|Prof|[JS]r|St|Mt|No|vs|etc|approx|e\.g|i\.e|[A-Z])\.$")
"""A stop that ends an abbreviation or an initial."""
_PATIENCE: Final = 400
"""Characters without an end of a sentence after which the text is handed on up to its last comma or blank."""


class ArrivingText:
    """Not thread-safe. Every character given comes out once and in order."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, piece: str) -> str:
        """`piece` arrived. Returns the sentences that are complete now; empty while none is."""
        before, self._text = len(self._text), self._text + piece
        # What stood there before has no end, but for a stop whose blank may come now.
        ends = [m for m in _ENDS.finditer(self._text, max(0, before - 8)) if not _NO_END.search(self._text[: m.end()])]
        if ends:
            return self._cut(ends[-1].end())
        if len(self._text) > _PATIENCE:
            return self._cut(max(self._text.rfind(mark) + 1 for mark in ",，、 ") or len(self._text))
        return ""

    def rest(self) -> str:
        """The text is at its end: what was not handed on yet."""
        return self._cut(len(self._text))

    def _cut(self, at: int) -> str:
        complete, self._text = self._text[:at], self._text[at:]
        return complete
