"""The kinds that the operator reads and writes, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cosyvoice_contract import GROUP
from cosyvoice_operator.api.service import KIND, PLURAL, VERSION

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    group: str
    """Empty for the core group."""
    version: str
    name: str
    plural: str
    project: str = ""
    """What brings the kind, where Kubernetes itself does not: then it may be missing."""
    asked_for_by: str = ""
    """The field of a CosyVoiceService for which such an object is made."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def type_name(self) -> str:
        """As `Plan.served` has it."""
        return f"{self.api_version}/{self.name}"

    def collection(self, namespace: str) -> str:
        return f"{self.root}/namespaces/{namespace}/{self.plural}"

    def path(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{name}"


SERVICE: Final = Kind("", "v1", "Service", "services")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
AUTOSCALER: Final = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
INGRESS: Final = Kind("networking.k8s.io", "v1", "Ingress", "ingresses")
POD: Final = Kind("", "v1", "Pod", "pods")
COSYVOICE_SERVICE: Final = Kind(GROUP, VERSION, KIND, PLURAL)

CHILDREN: Final = (SERVICE, CONFIG_MAP, DEPLOYMENT, AUTOSCALER, BUDGET, INGRESS)
"""What the operator makes of Kubernetes' own kinds."""

HTTP_ROUTE: Final = Kind(
    "gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", "the Gateway API", "spec.service.httpRoute"
)

OPTIONAL: Final = (HTTP_ROUTE,)
"""What it makes where the cluster has the kind."""

_BY_NAME: Final = {(kind.api_version, kind.name): kind for kind in (*CHILDREN, *OPTIONAL)}


def kind_of(manifest: Object) -> Kind:
    """Of a child. Raises KeyError for any other kind."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
