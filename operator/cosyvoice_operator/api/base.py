"""What every model of the API shares: camelCase on the wire, nothing unknown accepted, docstrings as descriptions."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """`json_schema_extra` with (rule, message) pairs that the API server checks at apply."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def list_map(key: str) -> dict[str, Any]:
    """`json_schema_extra` of a list whose items are told apart, and merged, by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
DnsSubdomain = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
QualifiedName = Annotated[str, Field(min_length=1, max_length=317)]
_QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"


def _quantity(value: int | str) -> int | str:
    if not re.match(_QUANTITY, str(value)):
        raise ValueError("not a quantity such as 2, 500m or 16Gi")
    return value


Quantity = Annotated[
    int | str,
    AfterValidator(_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": _QUANTITY, "maxLength": 32}),
]
