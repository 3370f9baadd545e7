"""What the operator would make of a manifest, without a cluster: for GitOps and for review."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import KIND, CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.desired.children import children
from cosyvoice_operator.plan import plan


def render(documents: Iterable[Any], settings: Settings) -> str:
    """The children of every CosyVoiceService among the documents, as YAML; other kinds are passed over.

    Raises SpecError that names the service, the field, the value and the mend.
    """
    rendered: list[dict[str, Any]] = []
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != KIND:
            continue
        name = (document.get("metadata") or {}).get("name", "?")
        try:
            rendered += children(plan(CosyVoiceService.parse(document), settings))
        except SpecError as error:
            raise SpecError(error.reason, f"{name}: {error.message}") from error
    return yaml.dump_all(rendered, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: anchors are no help to a reader."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
