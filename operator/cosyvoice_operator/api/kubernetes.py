"""The parts of Kubernetes' own types that a user may set, typed so that a mistake is refused at apply."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from cosyvoice_operator.api.base import Model, Quantity

ResourceList = Annotated[dict[str, Quantity], Field(max_length=16)]


class Resources(Model):
    """Compute resources of the worker container, beside its GPU."""

    requests: ResourceList = Field(default_factory=dict)
    """What the scheduler sets aside; what is not named comes from the card."""
    limits: ResourceList = Field(default_factory=dict)
    """Upper bounds; none by default (a CPU limit throttles synthesis)."""


class Toleration(Model):
    """As in a pod."""

    key: Annotated[str, Field(max_length=317)] | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class ScalingPolicy(Model):
    """As in autoscaling/v2 HPAScalingPolicy."""

    type: Literal["Pods", "Percent"]
    value: Annotated[int, Field(ge=1)]
    period_seconds: Annotated[int, Field(ge=1, le=1800)]


class ScalingRules(Model):
    """As in autoscaling/v2 HPAScalingRules; what is not set comes from the operator's default for GPUs."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    policies: Annotated[list[ScalingPolicy], Field(min_length=1, max_length=8)] | None = None


class ScalingBehavior(Model):
    """As in autoscaling/v2 HorizontalPodAutoscalerBehavior."""

    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
_KEYED = ("containers", "initContainers", "volumes", "imagePullSecrets", "resourceClaims")


class PodTemplateMetadata(Model):
    labels: Labels = Field(default_factory=dict)
    annotations: Annotations = Field(default_factory=dict)


class PodTemplate(Model):
    """Laid over the operator's pod template by strategic merge; the main container is `worker`."""

    metadata: PodTemplateMetadata = PodTemplateMetadata()
    spec: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] = Field(
        default_factory=dict
    )
    """As in a pod. The API server checks it when the Deployment is applied; what it refuses is shown in `Accepted`."""

    @field_validator("spec")
    @classmethod
    def items_have_names(cls, spec: dict[str, Any]) -> dict[str, Any]:
        for field in _KEYED:
            items = spec.get(field)
            if items is not None and not isinstance(items, list):
                raise ValueError(f"{field} is {items!r}; write a list")
            for index, item in enumerate(items or []):
                if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                    raise ValueError(f"{field}[{index}] needs a name, by which it is merged")
        return spec


NodeSelector = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
