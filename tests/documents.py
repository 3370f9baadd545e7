"""What the documents show: their fenced blocks, their commands and their links, for the tests that try each of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCUMENTS: Final = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
PROGRAMS: Final = (
    "make",
    "docker",
    "helm",
    "kubectl",
    "curl",
    "python",
    "python3",
    "cosyvoice-operator",
    "cosyvoice-worker",
)
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(rf"^(?:    |\$ )?((?:{'|'.join(PROGRAMS)}) (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `where` names document and line for the test's name."""

    where: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that a reader may type; `words` as the shell sees them, without comment, pipes and redirections."""

    where: str
    line: str

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.line.replace("\\\n", " "), comments=True)
        end = next((i for i, word in enumerate(words) if word in {"|", ">", "&&"}), len(words))
        return words[:end]


def blocks(language: str) -> list[Block]:
    return [block for document in DOCUMENTS for block in _blocks(document) if block.language == language]


def commands(*programs: str) -> list[Command]:
    """The commands of these programs, each once."""
    found: dict[str, Command] = {}
    for document in DOCUMENTS:
        text = document.read_text()
        candidates = [
            (match.start(), match[1]) for match in _COMMAND.finditer(text) if match[0].startswith(("    ", "$ "))
        ]
        candidates += [
            (block.start() + 4, line)
            for block in _FENCE.finditer(text)
            if block[1] in {"", "sh", "bash", "console", "shell"}
            for line in _COMMAND.findall(block[2])
        ]
        for position, line in candidates:
            if line.split()[0] in programs and "──" not in line:  # a drawing may begin with a command
                found.setdefault(line, Command(_where(document, text, position), line))
    return list(found.values())


def links() -> Iterator[tuple[Path, str]]:
    """Each document and the relative path that it links to."""
    for document in DOCUMENTS:
        for target in _LINK.findall(_FENCE.sub("", document.read_text())):
            if not re.match(r"\w+:|#", target):
                yield document, target.partition("#")[0]


def _blocks(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for match in _FENCE.finditer(text):
        yield Block(_where(document, text, match.start()), match[1], match[2])


def _where(document: Path, text: str, position: int) -> str:
    return f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, position) + 1}"
