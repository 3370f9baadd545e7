"""What the chart writes is what the operator understands."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.api.settings import Settings
from tests.cluster import binaries
from tests.controlplane.operator_harness import CHART

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def helm() -> Path:
    binaries.build(["helm"])
    return binaries.BIN / "helm"


def template(helm: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "cosyvoice", CHART, "--namespace", "system", "--kube-version=1.34.0", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(helm: Path, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    done = template(helm, *options)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def settings_of(objects: dict[tuple[str, str], dict[str, Any]]) -> Settings:
    text = objects["ConfigMap", "cosyvoice"]["data"]["settings.yaml"]
    return Settings.model_validate(yaml.safe_load(text))


def test_the_settings_are_the_operators(helm: Path) -> None:
    settings = settings_of(rendered(helm))
    assert settings.worker_image.reference("cuda") == "cosyvoice-worker:0.1.0"
    assert settings.worker_image.reference("cpu") == "cosyvoice-worker:0.1.0-cpu"


def test_a_row_of_the_values_changes_the_catalogue(helm: Path) -> None:
    settings = settings_of(rendered(helm, "--set", "cards.T4.streamsPerWorker=30,workerImage.tag=v2"))
    assert settings.catalogue.cards["T4"].streams_per_worker == 30
    assert settings.catalogue.cards["T4"].resources.requests["cpu"] == "4"
    assert settings.worker_image.reference("cuda") == "cosyvoice-worker:v2"


def test_a_misspelt_value_is_refused(helm: Path) -> None:
    done = template(helm, "--set", "operator.replica=2")
    assert done.returncode != 0
    assert "'replica' not allowed" in done.stderr


def test_an_uninstall_keeps_the_crd_and_an_upgrade_brings_the_new_one(helm: Path) -> None:
    crd = rendered(helm)["CustomResourceDefinition", "cosyvoiceservices.tts.cosyvoice.io"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not any(kind == "CustomResourceDefinition" for kind, _ in rendered(helm, "--set", "crd.install=false"))


def test_every_pod_of_the_chart_passes_pod_security_restricted(helm: Path) -> None:
    deployments = [item for (kind, _), item in rendered(helm).items() if kind == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]


def test_the_operator_may_do_no_more_than_it_does(helm: Path) -> None:
    role = rendered(helm)["ClusterRole", "system-cosyvoice"]
    verbs = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    child = {"get", "list", "watch", "create", "patch", "delete"}
    assert verbs == {
        ("tts.cosyvoice.io", "cosyvoiceservices"): {"list", "watch"},
        ("tts.cosyvoice.io", "cosyvoiceservices/status"): {"patch"},
        ("", "services"): child,
        ("apps", "deployments"): child,
        ("autoscaling", "horizontalpodautoscalers"): child,
        ("policy", "poddisruptionbudgets"): child,
        ("", "pods"): {"list", "watch"},
        ("events.k8s.io", "events"): {"create"},
        ("coordination.k8s.io", "leases"): {"list", "watch"},
    }
