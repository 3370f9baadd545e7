"""The Service in front of all pools."""

from __future__ import annotations

from cosyvoice_contract import LABEL_SERVICE
from cosyvoice_operator.desired.metadata import Manifest, metadata
from cosyvoice_operator.desired.plan import Plan


def service(plan: Plan) -> Manifest:
    endpoint = plan.service.spec.service
    name = plan.service.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan, name)
        | ({"annotations": dict(sorted(endpoint.annotations.items()))} if endpoint.annotations else {}),
        "spec": {
            "type": endpoint.type,
            "selector": {LABEL_SERVICE: name},
            "ports": [
                {"name": "http", "port": endpoint.port, "protocol": "TCP", "targetPort": "http", "appProtocol": "http"}
            ],
        },
    }


def url(plan: Plan) -> str:
    """Base of the OpenAI API inside the cluster, without `/v1`."""
    name, namespace = plan.service.metadata.name, plan.service.metadata.namespace
    port = plan.service.spec.service.port
    return f"http://{name}.{namespace}.svc" + ("" if port == 80 else f":{port}")
