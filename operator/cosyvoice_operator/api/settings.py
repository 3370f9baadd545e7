"""What an administrator says once per installation: the file that the chart writes from its values."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from cosyvoice_operator.api.base import Model
from cosyvoice_operator.api.catalogue import Catalogue
from cosyvoice_operator.api.errors import SpecError


class WorkerImage(Model):
    """Where the worker image is, in its variants."""

    repository: str = "cosyvoice-worker"
    tag: str = "dev"
    variants: dict[Literal["cuda", "cpu"], str] = {"cuda": "", "cpu": "-cpu"}  # noqa: RUF012
    """Appended to the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: Annotated[list[str], Field(max_length=16)] = Field(default_factory=list)
    """Names of image pull secrets, which must exist in the service's namespace."""

    def reference(self, variant: Literal["cuda", "cpu"]) -> str:
        return f"{self.repository}:{self.tag}{self.variants.get(variant, '')}"


class Settings(Model):
    worker_image: WorkerImage = WorkerImage()
    cards: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Rows laid over the built-in card catalogue."""
    resync_seconds: Annotated[float, Field(gt=0)] = 600
    """Every service is looked at again after this long, whatever the watches said."""

    rollouts_at_once: Annotated[int, Field(ge=1)] = 3
    """Services whose workers may be replaced at once because the operator or its settings changed."""

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue.load(self.cards)

    @classmethod
    def load(cls, path: Path | None) -> Settings:
        """From a YAML file, or the defaults. Raises SpecError naming the field, OSError if the file is unreadable."""
        if path is None:
            return cls()
        try:
            settings = cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except ValidationError as error:
            raise SpecError.of(error, root=str(path)) from error
        _ = settings.catalogue  # a mistake in `cards` ends the new pod, not every service
        return settings
