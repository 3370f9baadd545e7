"""What a user may say, and what a mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.api.crd import crd, crd_yaml
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.reference import reference
from cosyvoice_operator.api.service import CosyVoiceService
from tests.unit.operator.builders import manifest, pool

ROOT = Path(__file__).parents[3]

BUILT_IN = {"builtIn": {"name": "DemoEnglish"}}

MISTAKES = {
    "two sources": (
        {"model": {"name": "m", "source": {**BUILT_IN, "random": {}}}},
        "spec.model.source: exactly one of persistentVolumeClaim, builtIn, random is required",
    ),
    "no source": ({"model": {"name": "m", "source": {}}}, "spec.model.source: exactly one of"),
    "min over max": (
        {"pools": [pool(concurrency={"min": 9, "max": 3})]},
        "spec.pools[0].concurrency: min must not be greater than max (9 > 3)",
    ),
    "misspelt field": (
        {"pools": [pool(concurency={"max": 3})]},
        "spec.pools[0].concurency: unknown field; remove it or mend its spelling",
    ),
    "streams and workers": (
        {"pools": [pool(workers={"max": 3})]},
        "spec.pools[0]: exactly one of concurrency, workers is required",
    ),
    "two pools of one name": ({"pools": [pool(), pool()]}, "spec: pools: name 't4' is given twice"),
    "no pool": ({"pools": []}, "spec.pools: list should have at least 1 item"),
    "not a percentage": (
        {"autoscaling": {"signals": [{"type": "GPULoad", "targetPercent": 0}]}},
        "spec.autoscaling.signals[0].targetPercent: input should be greater than or equal to 1 (is 0)",
    ),
    "unknown signal": (
        {"autoscaling": {"signals": [{"type": "GPUTemperature"}]}},
        "spec.autoscaling.signals[0].type: input should be 'GPULoad', 'GPUUtilization' or 'GPUMemory'",
    ),
    "bad quantity": (
        {"pools": [pool(resources={"requests": {"cpu": "four"}})]},
        "spec.pools[0].resources.requests.cpu: not a quantity such as 2, 500m or 16Gi (is 'four')",
    ),
}


@pytest.mark.parametrize(("spec", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_answered_with_its_field_and_its_mend(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        CosyVoiceService.parse(manifest(**spec))
    assert refused.value.reason == "InvalidSpec"
    assert message in refused.value.message


@pytest.mark.parametrize("name", ["Narrator", "1narrator", "a" * 41, "nar_rator", "narrator-"])
def test_a_name_that_no_service_can_bear_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"metadata\.name"):
        CosyVoiceService.parse(manifest(name))


def test_a_service_needs_a_model_and_a_pool_and_nothing_else() -> None:
    spec = CosyVoiceService.parse(manifest()).spec
    assert spec.autoscaling.provider == "HPA"
    assert [(signal.type, signal.target_percent) for signal in spec.autoscaling.signals] == [("GPULoad", 80)]
    assert (spec.rollout.type, spec.drain.timeout_seconds, spec.service.port) == ("InPlace", 330, 80)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_valid(example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text()):
        CosyVoiceService.parse(document)


@pytest.mark.parametrize(
    "copy", ["crds/cosyvoiceservices.tts.cosyvoice.io.yaml", "charts/cosyvoice-operator/files/crd.yaml"]
)
def test_the_crd_is_what_the_models_say(copy: str) -> None:
    assert (ROOT / copy).read_text() == crd_yaml(), "run `make generate` and commit what it writes"


def test_the_reference_is_what_the_models_say() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == reference(), "run `make generate` and commit what it writes"


def test_every_field_of_the_spec_that_needs_words_has_them() -> None:
    text = reference()
    for field in ("pools[].card", "autoscaling.signals", "drain", "podTemplate", "model.source"):
        row = next(line for line in text.splitlines() if f"`{field}`" in line)
        assert len(row.split("|")[-2].strip()) > 10, row


def test_the_crd_is_small_enough_for_kubectl_apply() -> None:
    # kubectl apply keeps the whole object in an annotation, and those end at 256 KiB.
    assert len(crd_yaml()) < 256 * 1024


def test_every_list_and_string_of_the_spec_has_a_bound() -> None:
    """CEL's cost is estimated from the bounds, and a rule beneath an unbounded list would be refused."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(_unbounded(schema, "spec")) == []


def _unbounded(schema: dict[str, Any], path: str) -> list[str]:
    found = []
    if schema.get("type") == "array" and "maxItems" not in schema:
        found.append(path)
    if schema.get("type") == "string" and "maxLength" not in schema and "enum" not in schema:
        found.append(path)
    if "additionalProperties" in schema:
        if "maxProperties" not in schema:
            found.append(path)
        found += _unbounded(schema["additionalProperties"], f"{path}.*")
    if "items" in schema:
        found += _unbounded(schema["items"], f"{path}[]")
    for name, value in schema.get("properties", {}).items():
        found += _unbounded(value, f"{path}.{name}")
    return found
