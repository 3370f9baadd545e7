"""The command line that works without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cosyvoice_operator.__main__ import main
from tests.unit.operator.builders import manifest, pool

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_render_prints_the_children(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(EXAMPLES / "t4-fleet.yaml")]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    kinds = [child["kind"] for child in children]
    assert kinds == ["Service", "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget"]
    assert all("ownerReferences" not in child["metadata"] for child in children), "there is no service to own them yet"


def test_explain_says_how_the_figures_came_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "-f", str(EXAMPLES / "t4-fleet.yaml")]) == 0
    words = capsys.readouterr().out
    assert "50 to 400 streams / 50, rounded up, are 1 to 8 workers." in words
    assert "the catalogue's row T4 (article; not measured with this project)" in words
    assert "nvidia.com/gpu.product in (Tesla-T4, Tesla-T4-SHARED)" in words
    assert "It asks its node for 4 of cpu and 16Gi of memory: a machine needs more than that" in words
    assert "The autoscaler adds workers above GPULoad of 80%" in words


def test_settings_change_what_is_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "workerImage: {repository: registry.example/worker, tag: v1}\ncards: {T4: {streamsPerWorker: 25}}\n"
    )
    assert main(["render", "-f", str(EXAMPLES / "t4-fleet.yaml"), "--settings", str(settings)]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    assert children[1]["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/worker:v1"
    assert children[2]["spec"]["maxReplicas"] == 16


@pytest.mark.parametrize("command", ["render", "explain"])
def test_a_mistake_is_told_with_service_and_field(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(manifest(pools=[pool(card="V100")])))
    assert main([command, "-f", str(path)]) == 1
    assert "narrator: spec.pools[0].card: 'V100' is not in the card catalogue" in capsys.readouterr().err


def test_a_mistake_in_the_settings_is_told_with_its_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("workerimage: {}\n")
    assert main(["render", "-f", str(EXAMPLES / "t4-fleet.yaml"), "--settings", str(settings)]) == 1
    assert "workerimage: unknown field; remove it or mend its spelling" in capsys.readouterr().err


def test_a_mistake_in_a_row_of_the_settings_ends_the_process_before_it_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("cards: {T4: {streamPerWorker: 30}}\n")
    assert main(["run", "--settings", str(settings)]) == 1
    assert "T4.streamPerWorker: unknown field; remove it or mend its spelling" in capsys.readouterr().err
