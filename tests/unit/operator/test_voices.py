"""What the voices of a service come to: a file for the workers, and what their pods mount."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

import cosyvoice_contract as contract
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import CosyVoiceService
from cosyvoice_operator.desired.children import children
from tests.unit.operator.builders import manifest, planned

Object = dict[str, Any]


def preset(name: str = "anna", **audio: Any) -> Object:
    return {
        "name": name,
        "text": "Anna speaks.",
        "audio": audio or {"configMapKeyRef": {"name": "voices", "key": f"{name}.wav"}},
    }


STORE = {"persistentVolumeClaim": {"claimName": "uploads"}}


def made(**voices: Any) -> dict[str, Object]:
    return {child["kind"]: child for child in children(planned(voices=voices))}


def pod(**voices: Any) -> Object:
    template: Object = made(**voices)["Deployment"]["spec"]["template"]
    return template


def config(**voices: Any) -> contract.VoicesConfig:
    found: contract.VoicesConfig = json.loads(made(**voices)["ConfigMap"]["data"]["voices.json"])
    return found


def test_every_recording_is_where_a_mount_of_the_pod_has_it() -> None:
    voices = {
        "preset": [
            preset("anna"),
            preset("bob", secretKeyRef={"name": "private.voices", "key": "bob.flac"}),
            preset("cleo", path="studio/cleo.wav"),
        ],
        "store": STORE,
    }
    files = {voice["name"]: PurePosixPath(voice["file"]) for voice in config(**voices)["preset"]}
    spec = pod(**voices)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {PurePosixPath(mount["mountPath"]): mount for mount in spec["containers"][0]["volumeMounts"]}

    def source(name: str, folder: PurePosixPath) -> Object:
        found: Object = volumes[mounts[folder]["name"]]
        return found

    assert source("anna", files["anna"].parent)["configMap"]["name"] == "voices"
    assert files["anna"].name == "anna.wav"
    assert source("bob", files["bob"].parent)["secret"]["secretName"] == "private.voices"
    assert source("cleo", files["cleo"].parent.parent)["persistentVolumeClaim"] == {"claimName": "uploads"}
    assert str(files["cleo"]) == f"{contract.VOICE_STORE_DIR}/studio/cleo.wav"


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"preset": [preset("anna"), preset("bob")]},
        {"preset": [{**preset("anna"), "text": "Anna says something else."}]},
        {"preset": [preset("anna")], "aliases": {"alloy": "anna"}},
    ],
    ids=["none", "another of the same ConfigMap", "another text", "an alias"],
)
def test_a_change_of_voices_changes_no_pod(after: Object) -> None:
    before = {"preset": [preset("anna")]}
    if not after:  # the sources change as well
        assert pod()["spec"]["volumes"][:3] == pod(**before)["spec"]["volumes"][:3]
        return
    assert made(**after)["ConfigMap"]["metadata"] == made(**before)["ConfigMap"]["metadata"]
    assert config(**after) != config(**before)
    assert pod(**after) == pod(**before)


def test_the_first_alias_changes_no_pod() -> None:
    assert "ConfigMap" not in made()
    assert pod(aliases={"alloy": "DemoEnglish"}) == pod()


def test_an_object_that_no_preset_named_before_is_mounted_and_what_was_stays_as_it_was() -> None:
    before = pod(preset=[preset("anna")])["spec"]["volumes"]
    after = pod(preset=[preset("anna"), preset("bob", secretKeyRef={"name": "more", "key": "bob"})])["spec"]["volumes"]
    assert [volume for volume in after if volume not in before] == [after[-1]]
    assert after[-1]["secret"] == {"secretName": "more", "optional": True}


def test_what_is_missing_keeps_no_worker_from_starting() -> None:
    volumes = pod(preset=[preset("anna"), preset("bob", secretKeyRef={"name": "s", "key": "k"})])["spec"]["volumes"]
    mounted = [volume.get("configMap") or volume.get("secret") for volume in volumes if "voice" in volume["name"]]
    assert len(mounted) == 3
    assert all(source["optional"] for source in mounted)


def test_uploads_need_a_store_which_the_workers_may_write() -> None:
    def environment(template: Object) -> dict[str, str]:
        return {entry["name"]: entry["value"] for entry in template["spec"]["containers"][0]["env"]}

    assert contract.ENV_VOICE_STORE_DIR not in environment(pod())
    with_store = pod(store=STORE)
    assert environment(with_store)[contract.ENV_VOICE_STORE_DIR] == contract.VOICE_STORE_DIR
    (mount,) = (
        mount
        for mount in with_store["spec"]["containers"][0]["volumeMounts"]
        if mount["mountPath"] == contract.VOICE_STORE_DIR
    )
    assert not mount.get("readOnly")
    assert with_store["spec"]["securityContext"]["fsGroup"] == contract.WORKER_GID


@pytest.mark.parametrize(
    ("voices", "told"),
    [
        ({"preset": [preset(path="anna.wav")]}, "spec.voices: store is required where a preset's audio is a path"),
        (
            {"preset": [preset("Anna"), preset("anna")]},
            "spec.voices: preset: the names 'Anna' and 'anna' mean the same; rename one",
        ),
        ({"preset": [preset(path="../anna.wav")], "store": STORE}, "spec.voices.preset[0].audio.path"),
        (
            {"preset": [preset(path="a.wav", secretKeyRef={"name": "s", "key": "k"})], "store": STORE},
            "spec.voices.preset[0].audio: exactly one of configMapKeyRef, secretKeyRef, path is required",
        ),
        ({"aliases": {" ": "anna"}}, "spec.voices: aliases: a name is empty; remove it"),
    ],
)
def test_what_the_workers_could_not_use_is_refused(voices: Object, told: str) -> None:
    with pytest.raises(SpecError) as refused:
        CosyVoiceService.parse(manifest(voices=voices))
    assert told in refused.value.message
