"""The Service in front of all pools."""

from __future__ import annotations

from cosyvoice_contract import LABEL_SERVICE
from cosyvoice_operator.desired.metadata import Manifest, annotated, metadata
from cosyvoice_operator.plan import Plan


def service(plan: Plan) -> Manifest:
    endpoint = plan.service.spec.service
    name = plan.service.metadata.name
    port: Manifest = {
        "name": "http",
        "port": endpoint.port,
        "protocol": "TCP",
        "targetPort": "http",
        "appProtocol": "http",
    }
    if endpoint.node_port is not None:
        port["nodePort"] = endpoint.node_port
    spec: Manifest = {"type": endpoint.type, "selector": {LABEL_SERVICE: name}, "ports": [port]}
    if endpoint.load_balancer_class is not None:
        spec["loadBalancerClass"] = endpoint.load_balancer_class
    if endpoint.load_balancer_source_ranges is not None:
        spec["loadBalancerSourceRanges"] = list(endpoint.load_balancer_source_ranges)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan, name) | annotated(endpoint.annotations),
        "spec": spec,
    }
