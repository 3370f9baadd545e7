"""The Deployment of a pool's workers."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import cosyvoice_contract as contract
from cosyvoice_operator.api.kubernetes import Toleration
from cosyvoice_operator.api.service import ModelSource
from cosyvoice_operator.desired.auth import key_environment, key_mounts, key_volumes
from cosyvoice_operator.desired.metadata import Manifest, metadata, pool_labels, pool_selector
from cosyvoice_operator.desired.overrides import merged
from cosyvoice_operator.desired.voices import voice_environment, voice_mounts, voice_volumes
from cosyvoice_operator.plan import Plan, PoolPlan

MODELS_MOUNT = "/models"
ANNOTATION_TEMPLATE = "tts.cosyvoice.io/template"
"""On a Deployment: a digest of its pod template, by which the operator sees that an apply would replace workers."""
STARTUP_PERIOD_SECONDS = 5
EXIT_SECONDS = 10
"""Between the end of the drain and SIGKILL: what the worker needs to leave."""


def deployment(plan: Plan, pool: PoolPlan) -> Manifest:
    """Without `spec.replicas`: that belongs to the autoscaler, or to who scales by hand (`cluster.replicas`)."""
    spec = plan.service.spec
    template = _template(plan, pool)
    annotations = {contract.ANNOTATION_SIGNAL_TARGETS: _signal_targets(pool), ANNOTATION_TEMPLATE: _digest(template)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(plan, pool.child_name, pool) | {"annotations": annotations},
        "spec": {
            "selector": {"matchLabels": pool_selector(plan, pool)},
            "strategy": _strategy(spec.rollout.type),
            # A worker may use up its start-up budget after the one before it has used up its drain.
            "progressDeadlineSeconds": pool.startup_seconds + spec.drain.timeout_seconds + 60,
            "revisionHistoryLimit": 3,
            "template": template,
        },
    }


def grace_seconds(plan: Plan) -> int:
    """From the decision to stop a worker to SIGKILL."""
    return contract.PRESTOP_SECONDS + plan.service.spec.drain.timeout_seconds + EXIT_SECONDS


def _template(plan: Plan, pool: PoolPlan) -> Manifest:
    """With what the user lays over it; the labels by which the operator finds its pods stay."""
    template: Manifest = {"metadata": {"labels": pool_labels(plan, pool)}, "spec": _pod(plan, pool)}
    for over in (plan.service.spec.pod_template, pool.pool.pod_template):
        template = merged(template, over.model_dump(exclude_defaults=True))
    template["metadata"]["labels"] |= pool_labels(plan, pool)
    return template


def _digest(template: Manifest) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


def _signal_targets(pool: PoolPlan) -> str:
    targets = {contract.SIGNAL_METRICS[signal.type]: signal.target_percent for signal in pool.signals}
    return json.dumps(targets, sort_keys=True)


def _strategy(rollout: str) -> Manifest:
    if rollout == "Recreate":
        return {"type": "Recreate"}
    surge, unavailable = (1, 0) if rollout == "Surge" else (0, 1)
    # With Kubernetes' default (25%/25%) one worker rounds to surge 1, unavailable 0: a deadlock without a spare GPU.
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _pod(plan: Plan, pool: PoolPlan) -> Manifest:
    spec = plan.service.spec
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    claim = spec.model.source.persistent_volume_claim
    if claim is not None:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}})
    volumes += voice_volumes(plan) + key_volumes(plan)
    pod: Manifest = {
        "containers": [_container(plan, pool)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": grace_seconds(plan),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(plan),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": pool_selector(plan, pool)},
                "matchLabelKeys": ["pod-template-hash"],
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
    }
    if plan.worker_image.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in plan.worker_image.pull_secrets]
    if pool.pool.runtime_class_name is not None:
        pod["runtimeClassName"] = pool.pool.runtime_class_name
    tolerations = [_toleration(item) for item in (*pool.card.tolerations, *pool.pool.tolerations)]
    if tolerations:
        pod["tolerations"] = tolerations
    if pool.pool.node_selector:
        pod["nodeSelector"] = dict(sorted(pool.pool.node_selector.items()))
    elif pool.card.nodes:
        pod["affinity"] = {"nodeAffinity": _nodes_with_card(pool)}
    return pod


def _pod_security(plan: Plan) -> Manifest:
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if plan.service.spec.voices.store is not None:
        # What is written to a volume is written as this group, to which a new volume is given.
        security |= {"fsGroup": contract.WORKER_GID, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


def _nodes_with_card(pool: PoolPlan) -> Manifest:
    """Any platform's labels will do (terms are alternatives), but all labels of one platform must match."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": key, "operator": "In", "values": values} for key, values in alternative.labels.items()
                    ]
                }
                for alternative in pool.card.nodes
            ]
        }
    }


def _toleration(toleration: Toleration) -> Manifest:
    return toleration.model_dump(by_alias=True, exclude_none=True)


def _container(plan: Plan, pool: PoolPlan) -> Manifest:
    spec = plan.service.spec
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - inside the container, an emptyDir
    if spec.model.source.persistent_volume_claim is not None:
        mounts.append({"name": "models", "mountPath": MODELS_MOUNT, "readOnly": True})
    mounts += voice_mounts(plan) + key_mounts(plan)
    return {
        "name": contract.WORKER_CONTAINER,
        "image": pool.image,
        "imagePullPolicy": plan.worker_image.pull_policy,
        "env": [{"name": name, "value": value} for name, value in _environment(plan, pool).items()],
        "ports": [{"name": "http", "containerPort": contract.WORKER_PORT, "protocol": "TCP"}],
        "resources": _resources(pool),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": {
            **_probe(contract.PATH_READY, period=STARTUP_PERIOD_SECONDS),
            "failureThreshold": math.ceil(pool.startup_seconds / STARTUP_PERIOD_SECONDS),
        },
        "readinessProbe": {**_probe(contract.PATH_READY, period=5), "failureThreshold": 3},
        "livenessProbe": {
            **_probe(contract.PATH_LIVE, period=10),
            "failureThreshold": 6,
            # A dead engine has nothing to drain: without this the kill would wait for the whole drain.
            "terminationGracePeriodSeconds": EXIT_SECONDS,
        },
        # The endpoints change while the worker still serves; only then does SIGTERM come and the drain begin.
        "lifecycle": {"preStop": {"sleep": {"seconds": contract.PRESTOP_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _probe(path: str, period: int) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5}


def _environment(plan: Plan, pool: PoolPlan) -> dict[str, str]:
    spec = plan.service.spec
    return {
        contract.ENV_MODEL_NAME: spec.model.name,
        **_model_environment(spec.model.source),
        contract.ENV_CARD: pool.pool.card,
        contract.ENV_DEVICE: "cpu" if pool.card.gpu is None else "cuda",
        contract.ENV_PRECISION: pool.precision.lower(),
        contract.ENV_STREAMS: str(pool.streams_per_worker),
        contract.ENV_MAX_RUNNING: str(pool.max_running),
        contract.ENV_MAX_BATCH_FRAMES: str(pool.max_batch_frames),
        contract.ENV_DRAIN_SECONDS: str(spec.drain.timeout_seconds),
        contract.ENV_MEMORY_GUARD_PERCENT: str(pool.memory_guard_percent),
        contract.ENV_LOG_LEVEL: spec.observability.log_level.lower(),
        **voice_environment(plan),
        **key_environment(plan),
    }


def _model_environment(source: ModelSource) -> dict[str, str]:
    if source.persistent_volume_claim is not None:
        path = source.persistent_volume_claim.path.strip("/")
        return {contract.ENV_MODEL_DIR: f"{MODELS_MOUNT}/{path}".rstrip("/")}
    if source.built_in is not None:
        return {contract.ENV_MODEL_BUILTIN: source.built_in.name}
    assert source.random is not None
    return {contract.ENV_MODEL_RANDOM: f"{source.random.size}:{source.random.seed}"}


def _resources(pool: PoolPlan) -> Manifest:
    """The card's, with the pool's laid over them, and one GPU."""
    own = pool.pool.resources
    requests: dict[str, Any] = {**pool.card.resources.requests, **own.requests}
    limits: dict[str, Any] = {**pool.card.resources.limits, **own.limits}
    if pool.card.gpu is not None:
        # An extended resource's request equals its limit; stating both keeps a quota's arithmetic plain.
        name = pool.pool.gpu_resource_name or pool.card.gpu.resource_name
        requests[name] = limits[name] = "1"
    resources = {"requests": _strings(requests)}
    return resources | ({"limits": _strings(limits)} if limits else {})


def _strings(quantities: dict[str, Any]) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in sorted(quantities.items())}
