"""The Service in front of all pools."""

from __future__ import annotations

from cosyvoice_contract import LABEL_SERVICE
from cosyvoice_operator.desired.metadata import Manifest, metadata
from cosyvoice_operator.plan import Plan


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
