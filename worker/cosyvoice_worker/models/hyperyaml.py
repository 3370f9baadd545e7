"""Reads the model's YAML as data: tags become inert nodes, nothing is imported, called or constructed.

The official files are HyperPyYAML, whose `!new:` and `!apply:` tags construct and call whatever they name. Here they
only say which class was meant; `directory.py` decides what to build of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20
"""The official files are about 8 KB."""

MAX_NODES = 100_000
"""After references are unfolded; the official files have a few hundred."""


class YamlError(ValueError):
    """The file is not the subset of HyperPyYAML that model directories need."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """What stood behind `!new:`, `!name:` or `!apply:`: the dotted name and its arguments, never called."""

    name: str
    arguments: Any
    """dict, list or None."""

    @property
    def class_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class _Reference:
    expression: str


class _InertLoader(yaml.SafeLoader):
    """SafeLoader with the tag table below and without aliases, so a small file cannot unfold into a large one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise YamlError("YAML aliases are not allowed in a model directory")
        return super().compose_node(parent, index)


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Tagged:
    if isinstance(node, yaml.MappingNode):
        return Tagged(suffix, loader.construct_mapping(node, deep=True))
    if isinstance(node, yaml.SequenceNode):
        return Tagged(suffix, loader.construct_sequence(node, deep=True))
    return Tagged(suffix, None)


def _reference(loader: yaml.SafeLoader, node: yaml.Node) -> _Reference:
    return _Reference(str(loader.construct_scalar(node)))  # type: ignore[arg-type]


for _prefix in ("!new:", "!name:", "!apply:"):
    _InertLoader.add_multi_constructor(_prefix, _tagged)
_InertLoader.add_constructor("!ref", _reference)


def read(path: Path) -> dict[str, Any]:
    """The file's top level, with references resolved.

    Raises YamlError for what is too large, malformed, carries another tag, or refers to what is not there.
    """
    if path.stat().st_size > MAX_BYTES:
        raise YamlError(f"{path.name} is larger than {MAX_BYTES} bytes")
    try:
        # The loader above is SafeLoader with a table of inert nodes.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_InertLoader)  # noqa: S506
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise YamlError(f"{path.name}: {error}") from error
    if not isinstance(document, dict):
        raise YamlError(f"{path.name} is not a mapping")
    try:
        return _Resolver(document).all()
    except RecursionError as error:
        raise YamlError(f"{path.name}: nested too deeply") from error


_TERM = re.compile(r"\s*(?:<(?P<name>\w+)>|(?P<number>\d+(?:\.\d+)?)|(?P<operator>[-+*/]))")


class _Resolver:
    """Puts in the place of every reference what it refers to."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def all(self) -> dict[str, Any]:
        return {key: self._resolve(value, ()) for key, value in self._root.items()}

    def _resolve(self, value: Any, seen: tuple[str, ...]) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlError(f"!ref: references unfold to more than {MAX_NODES} values")
        if isinstance(value, _Reference):
            return self._evaluate(value.expression, seen)
        if isinstance(value, Tagged):
            return Tagged(value.name, self._resolve(value.arguments, seen))
        if isinstance(value, dict):
            return {key: self._resolve(item, seen) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolve(item, seen) for item in value]
        return value

    def _evaluate(self, expression: str, seen: tuple[str, ...]) -> Any:
        """`<name>` or a chain such as `<chunk_size> * <token_mel_ratio>`, evaluated from left to right, one operator
        kind after the other without precedence: the official files never mix them."""
        total: Any = None
        operator = ""
        position = 0
        expression = expression.strip()
        while position < len(expression):
            match = _TERM.match(expression, position)
            if match is None:
                raise YamlError(f"!ref {expression!r}: only <names>, numbers and + - * / are allowed")
            position = match.end()
            if match["operator"]:
                if operator or total is None:
                    raise YamlError(f"!ref {expression!r}: two operators in a row")
                operator = match["operator"]
                continue
            term = self._term(match, seen)
            if total is None:
                total = term
            elif operator and isinstance(total, int | float) and isinstance(term, int | float):
                total = _apply(operator, total, term, expression)
            else:
                raise YamlError(f"!ref {expression!r}: arithmetic needs numbers and one operator between them")
            operator = ""
        if total is None or operator:
            raise YamlError(f"!ref {expression!r} is incomplete")
        return total

    def _term(self, match: re.Match[str], seen: tuple[str, ...]) -> Any:
        if match["number"]:
            return float(match["number"]) if "." in match["number"] else int(match["number"])
        name = match["name"]
        if name in seen:
            raise YamlError(f"!ref <{name}> refers to itself")
        if name not in self._root:
            raise YamlError(f"!ref <{name}>: there is no such key")
        return self._resolve(self._root[name], (*seen, name))


def _apply(operator: str, left: float, right: float, expression: str) -> float:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise YamlError(f"!ref {expression!r} divides by zero")
    return left / right
