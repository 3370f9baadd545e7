"""What the chart writes is what the operator understands."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.kinds import OPTIONAL
from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import CHART, eventually

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


def test_the_pods_of_the_chart_are_admitted_where_pod_security_is_restricted(
    helm: Path, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.run_kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    shown = ("--show-only=templates/operator.yaml", "--show-only=templates/metrics-api.yaml")
    done = template(helm, "--namespace", namespace, *shown)
    assert done.returncode == 0, done.stderr
    control_plane.run_kubectl("apply", "-f", "-", stdin=done.stdout)

    def admitted() -> None:
        names = control_plane.run_kubectl(
            "-n",
            namespace,
            "get",
            "pods",
            "--output=jsonpath={.items[*].metadata.labels['app\\.kubernetes\\.io/name']}",
        )
        assert sorted(names.split()) == ["cosyvoice-metrics-api"] * 2 + ["cosyvoice-operator"] * 2

    eventually(admitted)


def test_an_interval_shorter_than_a_workers_time_to_answer_is_refused(helm: Path) -> None:
    done = template(helm, "--set", "metricsAPI.scrapeIntervalSeconds=1.5")
    assert done.returncode != 0
    assert "scrapeIntervalSeconds" in done.stderr


def test_the_metrics_api_can_stand_on_the_nodes_network_but_not_on_the_kubelets_port(helm: Path) -> None:
    refused = template(helm, "--set", "metricsAPI.hostNetwork=true")
    assert refused.returncode != 0
    assert "with metricsAPI.hostNetwork choose another" in refused.stderr
    options = (
        "metricsAPI.hostNetwork=true,metricsAPI.ports.https=4443,metricsAPI.priorityClassName=system-cluster-critical"
    )
    pod = rendered(helm, "--set", options)["Deployment", "cosyvoice-metrics-api"]["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert "--port=4443" in pod["containers"][0]["args"]


def test_no_two_releases_share_a_cluster_wide_name(helm: Path) -> None:
    def cluster_wide(release: str, namespace: str) -> set[tuple[str, str]]:
        command = [helm, "template", release, CHART, "--namespace", namespace, "--kube-version=1.34.0"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        items = [item for item in yaml.safe_load_all(done.stdout) if item]
        return {
            (item["kind"], item["metadata"]["name"])
            for item in items
            if item["metadata"].get("namespace") in (None, "kube-system") and item["kind"] != "CustomResourceDefinition"
        }

    assert len(cluster_wide("c", "a-b")) == 12
    assert not cluster_wide("c", "a-b") & cluster_wide("b-c", "a")


def test_the_operator_may_do_no_more_than_it_does(helm: Path) -> None:
    role = rendered(helm)["ClusterRole", "system:cosyvoice"]
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
        ("", "configmaps"): child,
        ("apps", "deployments"): child,
        ("autoscaling", "horizontalpodautoscalers"): child,
        ("policy", "poddisruptionbudgets"): child,
        ("networking.k8s.io", "ingresses"): child,
        ("gateway.networking.k8s.io", "httproutes"): child,
        ("apiextensions.k8s.io", "customresourcedefinitions"): {"list", "watch"},
        ("", "pods"): {"list", "watch", "patch"},  # an admission policy leaves it the deletion cost alone
        ("apiregistration.k8s.io", "apiservices"): {"list", "watch"},
        ("events.k8s.io", "events"): {"create"},
        ("coordination.k8s.io", "leases"): {"list", "watch"},
    }
    names = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule}
    assert names == {
        "leases": ["cosyvoice-operator"],
        "customresourcedefinitions": [f"{kind.plural}.{kind.group}" for kind in OPTIONAL],
    }
