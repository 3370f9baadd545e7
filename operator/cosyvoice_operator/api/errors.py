"""How a mistake of the user's is reported: the field, the value seen, the mend."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError


@dataclass
class SpecError(Exception):
    """What a user said cannot be done; nothing was changed."""

    reason: str
    """In CamelCase, for a condition: `InvalidSpec`, `UnknownCard`, ..."""
    message: str
    """Names the field, the value seen and the mend."""

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: ValidationError, root: str = "") -> SpecError:
        """All mistakes that pydantic found, each with its path."""
        return cls("InvalidSpec", "; ".join(_sentence(dict(item), root) for item in error.errors(include_url=False)))


def _sentence(item: dict[str, object], root: str) -> str:
    path = root
    location = item["loc"]
    assert isinstance(location, tuple)
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown field; remove it or mend its spelling"
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item["input"]
    seen = f" (is {value!r})" if isinstance(value, str | int | float | bool) else ""
    return f"{path}: {message[:1].lower()}{message[1:]}{seen}" if path else message
