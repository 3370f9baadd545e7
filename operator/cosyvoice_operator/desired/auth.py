"""The API keys in a worker's pod. The operator never reads them, so it needs no right to any Secret."""

from __future__ import annotations

from cosyvoice_contract import API_KEYS_DIR, ENV_API_KEYS_DIR
from cosyvoice_operator.desired.metadata import Manifest
from cosyvoice_operator.plan import Plan

_VOLUME = "api-keys"


def key_volumes(plan: Plan) -> list[Manifest]:
    """Not optional: a worker whose keys are missing does not start, and the kubelet writes changes of them into the
    volume of one that runs."""
    auth = plan.service.spec.auth
    if auth is None or auth.api_keys_secret_ref is None:
        return []
    return [{"name": _VOLUME, "secret": {"secretName": auth.api_keys_secret_ref.name}}]


def key_mounts(plan: Plan) -> list[Manifest]:
    """A whole directory: a `subPath` would not follow changes."""
    return [{"name": volume["name"], "mountPath": API_KEYS_DIR, "readOnly": True} for volume in key_volumes(plan)]


def key_environment(plan: Plan) -> dict[str, str]:
    return {ENV_API_KEYS_DIR: API_KEYS_DIR} if key_volumes(plan) else {}
