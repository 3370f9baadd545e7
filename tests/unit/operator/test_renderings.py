"""The children of a dozen services, kept as files so that a change of them is read as a diff.

`UPDATE_RENDERINGS=1 python -m pytest tests/unit/operator/test_renderings.py` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_operator.api.service import CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.desired.children import children
from cosyvoice_operator.plan import plan
from cosyvoice_operator.render import render
from tests.unit.operator.builders import manifest, pool

RENDERINGS = Path(__file__).parent / "renderings"
EXAMPLES = Path(__file__).parents[3] / "examples"

SETTINGS = Settings()
CARDS = sorted(SETTINGS.catalogue.cards)
OVERRIDES = {
    "overrides": manifest(
        image="registry.example/worker:1",
        pools=[
            pool(
                streamsPerWorker=25,
                gpuResourceName="nvidia.com/gpu.shared",
                runtimeClassName="nvidia",
                resources={"requests": {"cpu": 3}, "limits": {"memory": "20Gi"}},
                nodeSelector={"pool": "speech"},
                tolerations=[{"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}],
            )
        ],
        engine={"precision": "FP32", "maxRunning": 4, "maxBatchFrames": 9000, "memoryGuardPercent": 70},
        autoscaling={
            "signals": [{"type": "GPULoad", "targetPercent": 70}, {"type": "GPUMemory", "targetPercent": 100}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 900}},
        },
        rollout={"type": "Surge"},
        startup={"timeoutSeconds": 60},
        drain={"timeoutSeconds": 20},
        service={"port": 8080, "annotations": {"example.com/team": "voice"}},
        observability={"logLevel": "Debug"},
    ),
    "no-autoscaler-recreate-random": manifest(
        model={"name": "tiny", "source": {"random": {"seed": 7}}},
        pools=[pool(card="CPU", workers={"min": 2, "max": 2}, concurrency=None)],
        autoscaling={"provider": "None"},
        rollout={"type": "Recreate"},
    ),
    "two-pools": manifest(
        pools=[
            pool(),
            pool(
                name="a100",
                card="A100",
                engine={"precision": "BF16", "maxRunning": 32},
                signals=[{"type": "GPUUtilization", "targetPercent": 90}],
            ),
        ],
        disruption={"maxUnavailable": 2},
    ),
    "exposed": manifest(
        service={
            "type": "LoadBalancer",
            "loadBalancerClass": "example.com/internal",
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "nodePort": 30080,
            "ingress": {
                "className": "nginx",
                "host": "speech.example",
                "tlsSecretName": "speech-tls",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
            },
            "httpRoute": {
                "parentRefs": [{"name": "gateway", "namespace": "edge", "sectionName": "https"}],
                "hostnames": ["speech.example"],
            },
        },
        auth={"mode": "APIKeys", "apiKeysSecretRef": {"name": "speech-keys"}},
    ),
    "voices": manifest(
        voices={
            "preset": [
                {"name": "Anna", "text": "安娜。", "audio": {"configMapKeyRef": {"name": "voices", "key": "anna.wav"}}},
                {"name": "Bob", "text": "Bob.", "audio": {"secretKeyRef": {"name": "private.voices", "key": "bob"}}},
                {"name": "Cleo", "text": "Cleo.", "audio": {"path": "studio/cleo.flac"}},
                {"name": "Dora", "text": "Dora.", "audio": {"configMapKeyRef": {"name": "voices", "key": "dora.wav"}}},
            ],
            "store": {"persistentVolumeClaim": {"claimName": "uploads"}},
            "aliases": {"nova": "Bob", "alloy": "Anna"},
        }
    ),
    "quickstart": yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text()),
}
SERVICES: dict[str, Any] = {f"card-{card}": manifest(pools=[pool(card=card)]) for card in CARDS} | OVERRIDES


@pytest.mark.parametrize("name", SERVICES)
def test_children_are_as_reviewed(name: str) -> None:
    path = RENDERINGS / f"{name}.yaml"
    rendered = render([SERVICES[name]], SETTINGS)
    if os.environ.get("UPDATE_RENDERINGS"):
        path.write_text(rendered)
    assert rendered == path.read_text()


def test_no_rendering_is_left_over() -> None:
    assert {path.stem for path in RENDERINGS.glob("*.yaml")} == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_pods_pass_pod_security_restricted(name: str) -> None:
    for child in children(plan(CosyVoiceService.parse(SERVICES[name]), SETTINGS)):
        if child["kind"] != "Deployment":
            continue
        pod = child["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert set(pod["securityContext"]) <= {"runAsNonRoot", "seccompProfile", "fsGroup", "fsGroupChangePolicy"}
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert all(
            set(volume) - {"name"} <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
            for volume in pod["volumes"]
        )


@pytest.mark.parametrize("name", SERVICES)
def test_the_replicas_are_nobodys_in_what_is_applied(name: str) -> None:
    for child in children(plan(CosyVoiceService.parse(SERVICES[name]), SETTINGS)):
        assert "replicas" not in child.get("spec", {})


_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True)
_RANGES = st.tuples(st.integers(1, 5000), st.integers(1, 5000)).map(lambda pair: {"min": min(pair), "max": max(pair)})
_POOLS = st.builds(
    lambda card, size, streams, resources: {"card": card, **size, **streams, **resources},
    st.sampled_from(CARDS),
    st.one_of(_RANGES.map(lambda range: {"concurrency": range}), _RANGES.map(lambda range: {"workers": range})),
    st.one_of(st.just({}), st.integers(1, 1000).map(lambda value: {"streamsPerWorker": value})),
    st.one_of(
        st.just({}), st.sampled_from(["1", 2, "500m", "1e3"]).map(lambda q: {"resources": {"requests": {"cpu": q}}})
    ),
)
_SPECS = st.builds(
    lambda pools, rollout, provider, signals, drain: {
        "pools": [{"name": name, **fields} for name, fields in pools.items()],
        "rollout": {"type": rollout},
        "autoscaling": {"provider": provider, "signals": [{"type": signal} for signal in signals]},
        "drain": {"timeoutSeconds": drain},
    },
    st.dictionaries(_NAMES, _POOLS, min_size=1, max_size=4),
    st.sampled_from(["InPlace", "Surge", "Recreate"]),
    st.sampled_from(["HPA", "None"]),
    st.lists(st.sampled_from(["GPULoad", "GPUUtilization", "GPUMemory"]), min_size=1, unique=True),
    st.integers(0, 86_400),
)


@settings(max_examples=25, deadline=None)
@given(_NAMES, _SPECS)
def test_the_same_spec_gives_the_same_children_under_legal_names(name: str, spec: dict[str, Any]) -> None:
    first = children(plan(CosyVoiceService.parse(manifest(name, **spec)), SETTINGS))
    second = children(plan(CosyVoiceService.parse(manifest(name, **spec)), SETTINGS))
    assert first == second
    keys = [(child["kind"], child["metadata"]["name"]) for child in first]
    assert len(keys) == len(set(keys))
    assert all(len(child["metadata"]["name"]) <= 63 for child in first)
    assert all(len(value) <= 63 for child in first for value in child["metadata"]["labels"].values())
