"""The service's voices: a ConfigMap that the workers follow, and what their pods mount for it.

Which voices there are is in no pod template, so that a change of them replaces no worker. Pods mount whole objects, so
that only an object that no preset named before does. Nothing is mounted by force (`optional`): what is missing makes a
voice unavailable, which the workers tell, and must not keep a worker from starting.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import cosyvoice_contract as contract
from cosyvoice_operator.api.voices import Recording
from cosyvoice_operator.desired.metadata import Manifest, metadata
from cosyvoice_operator.plan import Plan, child_name

_VOLUME = "voices"
_STORE = "voice-store"


def voices_name(plan: Plan) -> str:
    """Of the ConfigMap."""
    return child_name(plan.service.metadata.name, "voices")


def voices(plan: Plan) -> list[Manifest]:
    """Nothing where nothing is said: pods do without."""
    said = plan.service.spec.voices
    if not said.preset and not said.aliases:
        return []
    config: contract.VoicesConfig = {
        "preset": [{"name": voice.name, "text": voice.text, "file": _file(voice.audio)} for voice in said.preset],
        "aliases": dict(sorted(said.aliases.items())),
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(plan, voices_name(plan)),
            "data": {contract.VOICES_FILE.rpartition("/")[2]: json.dumps(config, ensure_ascii=False, indent=1) + "\n"},
        }
    ]


def voice_volumes(plan: Plan) -> list[Manifest]:
    """The ConfigMap is mounted whether there are voices or not, so that the first one replaces no worker either."""
    volumes: list[Manifest] = [{"name": _VOLUME, "configMap": {"name": voices_name(plan), "optional": True}}]
    for kind, name in _sources(plan):
        source = (
            {"configMap": {"name": name, "optional": True}}
            if kind == "configmap"
            else {"secret": {"secretName": name, "optional": True}}
        )
        volumes.append({"name": _volume(kind, name), **source})
    store = plan.service.spec.voices.store
    if store is not None:
        claim = store.persistent_volume_claim.claim_name
        volumes.append({"name": _STORE, "persistentVolumeClaim": {"claimName": claim}})
    return volumes


def voice_mounts(plan: Plan) -> list[Manifest]:
    """Whole directories: a `subPath` would not follow changes."""
    folder = contract.VOICES_FILE.rpartition("/")[0]
    mounts: list[Manifest] = [{"name": _VOLUME, "mountPath": folder, "readOnly": True}]
    for kind, name in _sources(plan):
        mounts.append({"name": _volume(kind, name), "mountPath": _folder(kind, name), "readOnly": True})
    if plan.service.spec.voices.store is not None:
        mounts.append({"name": _STORE, "mountPath": contract.VOICE_STORE_DIR})
    return mounts


def voice_environment(plan: Plan) -> dict[str, str]:
    environment = {contract.ENV_VOICES_FILE: contract.VOICES_FILE}
    if plan.service.spec.voices.store is not None:
        environment[contract.ENV_VOICE_STORE_DIR] = contract.VOICE_STORE_DIR
    return environment


def _sources(plan: Plan) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that a recording is taken from, once, in an order that no other one changes."""
    found = set()
    for voice in plan.service.spec.voices.preset:
        if voice.audio.config_map_key_ref is not None:
            found.add(("configmap", voice.audio.config_map_key_ref.name))
        if voice.audio.secret_key_ref is not None:
            found.add(("secret", voice.audio.secret_key_ref.name))
    yield from sorted(found)


def _file(audio: Recording) -> str:
    if audio.config_map_key_ref is not None:
        return f"{_folder('configmap', audio.config_map_key_ref.name)}/{audio.config_map_key_ref.key}"
    if audio.secret_key_ref is not None:
        return f"{_folder('secret', audio.secret_key_ref.name)}/{audio.secret_key_ref.key}"
    return f"{contract.VOICE_STORE_DIR}/{audio.path}"


def _folder(kind: str, name: str) -> str:
    return f"{contract.VOICE_SOURCES_DIR}/{kind}-{name}"


def _volume(kind: str, name: str) -> str:
    """A volume's name has 63 characters and no dots, an object's 253 and dots."""
    return f"voice-{kind}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
