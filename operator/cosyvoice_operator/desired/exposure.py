"""What brings clients of outside to the Service: Ingress and HTTPRoute. Streams need no more than that nobody buffers
them, and how a controller is told so is in the user's annotations."""

from __future__ import annotations

from cosyvoice_operator.desired.metadata import Manifest, annotated, metadata
from cosyvoice_operator.plan import Plan


def exposure(plan: Plan) -> list[Manifest]:
    endpoint = plan.service.spec.service
    manifests = []
    if endpoint.ingress is not None:
        manifests.append(_ingress(plan))
    if endpoint.http_route is not None:
        manifests.append(_http_route(plan))
    return manifests


def _ingress(plan: Plan) -> Manifest:
    given = plan.service.spec.service.ingress
    assert given is not None
    name = plan.service.metadata.name
    backend = {"service": {"name": name, "port": {"name": "http"}}}
    spec: Manifest = {
        "rules": [{"host": given.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if given.class_name is not None:
        spec["ingressClassName"] = given.class_name
    if given.tls_secret_name is not None:
        spec["tls"] = [{"hosts": [given.host], "secretName": given.tls_secret_name}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": metadata(plan, name) | annotated(given.annotations),
        "spec": spec,
    }


def _http_route(plan: Plan) -> Manifest:
    endpoint = plan.service.spec.service
    given = endpoint.http_route
    assert given is not None
    name = plan.service.metadata.name
    spec: Manifest = {
        "parentRefs": [parent.model_dump(by_alias=True, exclude_none=True) for parent in given.parent_refs],
        "rules": [{"backendRefs": [{"name": name, "port": endpoint.port}]}],
    }
    if given.hostnames:
        spec["hostnames"] = list(given.hostnames)
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(plan, name) | annotated(given.annotations),
        "spec": spec,
    }
