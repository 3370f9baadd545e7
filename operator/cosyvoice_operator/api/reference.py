"""The API reference, docs/api.md, written from the CRD: `python -m cosyvoice_operator.api.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cosyvoice_operator.api.crd import crd

Schema = dict[str, Any]


def reference() -> str:
    definition = crd()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "# CosyVoiceService, v1alpha1",
        "",
        "Written by `make generate` from `operator/cosyvoice_operator/api`; do not edit. `kubectl explain "
        "cosyvoiceservice.spec` says the same. A field in **bold** must be given.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += _rows(schema["properties"][part], "")
        lines.append("")
    return "\n".join(lines)


def _rows(schema: Schema, path: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        shown = f"**`{here}`**" if name in required else f"`{here}`"
        meaning = " ".join([value.get("description", ""), *_rules(value)]).strip().replace("|", "\\|")
        yield f"| {shown} | {_type(value)} | {_default(value)} | {meaning} |"
        yield from _rows(value, here)
        if "items" in value:
            yield from _rows(value["items"], f"{here}[]")


def _rules(schema: Schema) -> list[str]:
    beneath = schema.get("items", {})
    rules = [*schema.get("x-kubernetes-validations", ()), *beneath.get("x-kubernetes-validations", ())]
    return [f"Rule: {rule['message']}." for rule in rules]


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {_type(schema['additionalProperties'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{schema['type']} {low} to {high}" if low is not None and high is not None else str(schema["type"])


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default in (None, {}, ""):
        return ""
    if isinstance(default, list):
        return "; ".join(", ".join(f"`{key}: {value}`" for key, value in item.items()) for item in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(reference(), end="")
