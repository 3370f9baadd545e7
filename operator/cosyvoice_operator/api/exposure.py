"""How clients reach a service, and who may: Service, Ingress, HTTPRoute, API keys, NetworkPolicy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from cosyvoice_operator.api.base import DnsLabel, DnsSubdomain, Model, cel
from cosyvoice_operator.api.kubernetes import Annotations

HostName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
Port = Annotated[int, Field(ge=1, le=65_535)]
Cidr = Annotated[str, Field(min_length=3, max_length=43, pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")]


class Ingress(Model):
    """An Ingress of the service's name that sends a host's requests to the Service. What a controller needs to let
    streams through (no buffering, long timeouts) is its own annotation: docs/exposure.md."""

    class_name: DnsSubdomain | None = None
    """The cluster's default class where it is not set."""
    host: HostName
    tls_secret_name: DnsSubdomain | None = None
    """A `kubernetes.io/tls` Secret in the service's namespace; without it TLS, if any, is the controller's own."""
    annotations: Annotations = Field(default_factory=dict)


class ParentReference(Model):
    """As in gateway.networking.k8s.io/v1 ParentReference."""

    name: DnsSubdomain
    """Of the Gateway."""
    namespace: DnsLabel | None = None
    """The service's where it is not set."""
    section_name: DnsSubdomain | None = None
    """A listener of the Gateway; all that take the route where it is not set."""
    port: Port | None = None


class HTTPRoute(Model):
    """An HTTPRoute of the service's name, in a cluster that has the Gateway API."""

    parent_refs: Annotated[list[ParentReference], Field(min_length=1, max_length=8)]
    hostnames: Annotated[list[HostName], Field(max_length=16)] = Field(default_factory=list)
    """Those of the listeners where none is given."""
    annotations: Annotations = Field(default_factory=dict)


_ONLY_LOAD_BALANCER = "loadBalancerClass and loadBalancerSourceRanges need type LoadBalancer"
_NODE_PORT = "nodePort needs type NodePort or LoadBalancer"


class Endpoint(Model):
    """The Kubernetes Service in front of all pools; it bears the name of the CosyVoiceService."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.type != 'ClusterIP' || !has(self.nodePort)", _NODE_PORT),
            (
                "self.type == 'LoadBalancer' || !(has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges))",
                _ONLY_LOAD_BALANCER,
            ),
        )
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """NodePort and LoadBalancer leave the cluster: spec.auth must be said."""
    port: Port = 80
    node_port: Port | None = None
    """The cluster draws one where it is not set."""
    load_balancer_class: Annotated[str, Field(min_length=1, max_length=317)] | None = None
    """The cluster's default where it is not set; it can never be changed."""
    load_balancer_source_ranges: Annotated[list[Cidr], Field(min_length=1, max_length=64)] | None = None
    """The clients that the load balancer lets in, e.g. `203.0.113.0/24`; all where it is not set."""
    annotations: Annotations = Field(default_factory=dict)
    ingress: Ingress | None = None
    http_route: HTTPRoute | None = None

    @model_validator(mode="after")
    def fits_its_type(self) -> Self:
        if self.type == "ClusterIP" and self.node_port is not None:
            raise ValueError(_NODE_PORT)
        if self.type != "LoadBalancer" and (self.load_balancer_class or self.load_balancer_source_ranges):
            raise ValueError(_ONLY_LOAD_BALANCER)
        return self

    @property
    def leaves_cluster(self) -> bool:
        return self.type != "ClusterIP" or self.ingress is not None or self.http_route is not None


class SecretReference(Model):
    name: DnsSubdomain


_KEYS = "apiKeysSecretRef is required with mode APIKeys, and only there"


class Auth(Model):
    """Who may speak. Must be said where the service leaves the cluster, if only that everybody may."""

    model_config = ConfigDict(json_schema_extra=cel(("(self.mode == 'APIKeys') == has(self.apiKeysSecretRef)", _KEYS)))

    mode: Literal["None", "APIKeys"]
    """APIKeys: a request needs one of the Secret's keys, as `Authorization: Bearer KEY`. None: everybody may who
    reaches the service."""
    api_keys_secret_ref: SecretReference | None = None
    """A Secret in the service's namespace, of entries `name: key`. Changes reach running workers without a
    rollout."""

    @model_validator(mode="after")
    def keys_where_needed(self) -> Self:
        if (self.mode == "APIKeys") != (self.api_keys_secret_ref is not None):
            raise ValueError(_KEYS)
        return self


AUTH_RULE = (
    "has(self.auth) || !(self.service.type != 'ClusterIP' || has(self.service.ingress) || has(self.service.httpRoute))",
    "spec.auth is required where the service leaves the cluster (type NodePort or LoadBalancer, ingress, httpRoute): "
    "mode APIKeys, or mode None to let everybody in",
)
"""Of the whole spec: CEL and the message of both checks."""
