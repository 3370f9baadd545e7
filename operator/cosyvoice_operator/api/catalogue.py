"""The card catalogue: what each card carries, what its worker asks for and which nodes have it. Data, not code."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from cosyvoice_operator.api.base import Model
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.kubernetes import Resources, Toleration

Precision = Literal["FP32", "FP16", "BF16"]


class Gpu(Model):
    """The GPU behind a card."""

    resource_name: str = "nvidia.com/gpu"
    """Extended resource of which a worker takes one."""
    memory: str
    """Of the device, e.g. `16Gi`; for readers."""
    compute_capability: str
    """For readers: what the worker image must be built for."""
    min_driver: str
    """NVIDIA driver from which the worker image runs, for readers."""


class NodeAlternative(Model):
    """One platform's way of labelling the nodes that have the card. All labels of an alternative must match."""

    platform: str
    labels: Annotated[dict[str, list[str]], Field(min_length=1)]
    """Label key -> exact values, any of them. Never compared by substring: A10 is not A100."""


class Machine(Model):
    """The machine for which `streamsPerWorker` was stated; not what a pod asks for."""

    cpu: int
    memory: str


class Card(Model):
    """A row of the catalogue."""

    streams_per_worker: Annotated[int, Field(ge=1)]
    """Audio seconds per second that one worker sustains: the first value, until the worker has measured its own."""
    calibrated: bool = False
    """True where the figure was measured with this project on this card, not quoted or estimated."""
    source: str
    """Where the figure is from."""
    machine: Machine | None = None
    image_variant: Literal["cuda", "cpu"]
    gpu: Gpu | None = None
    """None: the card is the CPU, and so is the worker's device. Nothing falls back from one to the other."""
    precisions: Annotated[list[Precision], Field(min_length=1)]
    """What the card computes in, the default first."""
    max_running: Annotated[int, Field(ge=0)] = 0
    """Sequences in the language model's batch at most; 0: the worker's own choice."""
    max_batch_frames: Annotated[int, Field(ge=0)] = 0
    resources: Resources
    nodes: list[NodeAlternative] = Field(default_factory=list)
    """A node has the card if any of these matches; empty: any node will do."""
    tolerations: list[Toleration] = Field(default_factory=list)
    startup_seconds: Annotated[int, Field(ge=1)]
    """How long a worker may take to load a model of 0.5 B parameters."""


class Catalogue(Model):
    """Card name -> row."""

    cards: dict[str, Card]

    @classmethod
    def load(cls, rows: dict[str, dict[str, Any]] | None = None) -> Catalogue:
        """The built-in rows, with the user's `rows` laid over them field by field; a new name is a new row.

        Raises SpecError naming the row and the field.
        """
        merged: dict[str, dict[str, Any]] = yaml.safe_load(
            files("cosyvoice_operator.api").joinpath("catalogue.yaml").read_text(encoding="utf-8")
        )
        for name, row in (rows or {}).items():
            merged[name] = {**merged.get(name, {}), **row}
        try:
            return cls.model_validate({"cards": merged})
        except ValidationError as error:
            raise SpecError.of(error, root="catalogue") from error
