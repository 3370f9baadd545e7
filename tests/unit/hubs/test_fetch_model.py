"""`cosyvoice-worker fetch-model`, as the operator runs it, against a hub that speaks the real protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cosyvoice_worker.hubs.command import FetchSettings, _serve
from cosyvoice_worker.hubs.download import Progress
from cosyvoice_worker.hubs.snapshot import HubError, HubFile
from tests.unit.hubs.hub import REPO, TOKEN, Hub

ROOT = Path(__file__).parents[3]


@pytest.fixture
def hub() -> Iterator[Hub]:
    running = Hub()
    yield running
    running.close()


def fetch(
    hub: Hub, target: Path, *, where: str = "HuggingFace", revision: str = "main", repo: str = REPO, token: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "COSYVOICE_"))},
        "PYTHONPATH": f"{ROOT / 'worker'}:{ROOT / 'contract'}",
        "HF_ENDPOINT": hub.url,
        "MODELSCOPE_ENDPOINT": hub.url,
        "NO_PROXY": "127.0.0.1",
        "HOME": str(target.parent),
        "COSYVOICE_FETCH_HUB": where,
        "COSYVOICE_FETCH_REPO": repo,
        "COSYVOICE_FETCH_REVISION": revision,
        "COSYVOICE_FETCH_TARGET": str(target),
        **({"HF_TOKEN": token} if token else {}),
    }
    return subprocess.run(
        [sys.executable, "-m", "cosyvoice_worker", "fetch-model"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def wanted(hub: Hub) -> dict[str, bytes]:
    return {name: content for name, content in hub.files.items() if not name.startswith("flow.decoder")}


@pytest.mark.parametrize("where", ["HuggingFace", "ModelScope"])
def test_a_branch_is_resolved_to_its_commit_and_what_a_worker_reads_arrives(
    hub: Hub, tmp_path: Path, where: str
) -> None:
    done = fetch(hub, tmp_path / "model", where=where)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "model") == wanted(hub)
    mark = json.loads((tmp_path / "model" / ".fetched.json").read_text())
    assert mark == {"revision": hub.commit, "bytes": sum(map(len, wanted(hub).values()))}


def test_what_is_there_is_not_fetched_again_though_the_branch_has_moved(hub: Hub, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path / "model").returncode == 0
    asked, first = len(hub.asked), hub.commit
    hub.commit = "2" * 40
    assert fetch(hub, tmp_path / "model").returncode == 0
    assert len(hub.asked) == asked
    assert json.loads((tmp_path / "model" / ".fetched.json").read_text())["revision"] == first


def test_a_connection_that_broke_is_gone_on_with_where_it_was(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".model.part" / "llm.pt.part").write_bytes(hub.files["llm.pt"][:1000])
    assert fetch(hub, tmp_path / "model").returncode == 0
    assert ("llm.pt", "bytes=1000-") in hub.asked
    assert contents(tmp_path / "model") == wanted(hub)


def test_a_connection_that_breaks_midway_brings_the_model_nonetheless(hub: Hub, tmp_path: Path) -> None:
    """What is lost is at most one block of the library's, 10 MiB."""
    hub.files["llm.pt"] = bytes(range(256)) * 4096 * 25
    hub.cut_after["llm.pt"] = 15 << 20
    done = fetch(hub, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert [span for name, span in hub.asked if name == "llm.pt"] == ["", f"bytes={10 << 20}-"]
    assert contents(tmp_path / "model") == wanted(hub)


def test_nothing_is_in_the_models_place_until_all_of_it_is(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt.add("llm.pt")
    done = fetch(hub, tmp_path / "model")
    assert done.returncode == 1
    assert "llm.pt arrived with another checksum than the hub states" in done.stderr
    assert not (tmp_path / "model").exists()
    hub.corrupt.clear()
    assert fetch(hub, tmp_path / "model").returncode == 0
    assert contents(tmp_path / "model") == wanted(hub)
    assert [name for name, _ in hub.asked].count("cosyvoice2.yaml") == 1


def test_small_files_are_checked_too(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt.add("cosyvoice2.yaml")
    done = fetch(hub, tmp_path / "model")
    assert "cosyvoice2.yaml arrived with another checksum" in done.stderr


def test_the_commit_that_was_begun_with_stays_the_one(hub: Hub, tmp_path: Path) -> None:
    """Half of one commit and half of another would be no model."""
    hub.corrupt.add("llm.pt")
    assert fetch(hub, tmp_path / "model").returncode == 1
    first, hub.commit = hub.commit, "2" * 40
    hub.corrupt.clear()
    done = fetch(hub, tmp_path / "model")
    assert done.returncode == 1
    assert f"no revision '{first}'" in done.stderr


def test_a_token_opens_a_private_model_and_is_in_no_log(hub: Hub, tmp_path: Path) -> None:
    hub.private = True
    refused = fetch(hub, tmp_path / "model")
    assert refused.returncode == 1
    assert f"there is no model {REPO} on the hub, or it is private and no token was given" in refused.stderr
    wrong = fetch(hub, tmp_path / "model", token="hf_anotherToken")
    assert "it is private and the token does not open it" in wrong.stderr
    opened = fetch(hub, tmp_path / "model", token=TOKEN)
    assert opened.returncode == 0, opened.stderr
    told = wrong.stdout + wrong.stderr + opened.stdout + opened.stderr
    assert TOKEN not in told
    assert "hf_anotherToken" not in told


@pytest.mark.parametrize("where", ["HuggingFace", "ModelScope"])
def test_a_model_that_is_not_there_is_told_as_such(hub: Hub, tmp_path: Path, where: str) -> None:
    done = fetch(hub, tmp_path / "model", where=where, repo="nobody/nothing")
    assert done.returncode == 1
    assert "nobody/nothing" in done.stderr


def test_a_revision_that_is_not_there_is_told_as_such(hub: Hub, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path / "model", revision="v9")
    assert f"{REPO} has no revision 'v9'; name a branch, a tag or a commit of it" in done.stderr


def test_a_hub_that_does_not_answer_is_told_as_such(hub: Hub, tmp_path: Path) -> None:
    hub.close()
    done = fetch(hub, tmp_path / "model")
    assert done.returncode == 1
    assert "broke off" in done.stderr


def test_progress_is_served_while_it_downloads() -> None:
    server = _serve(0, Progress("a" * 40, 5, 10))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/progress", timeout=10) as answer:
            assert json.load(answer) == {"revision": "a" * 40, "done_bytes": 5, "total_bytes": 10}
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("path", ["../llm.pt", "/etc/passwd", "a/../../b", ""])
def test_a_file_that_would_leave_the_models_directory_is_refused(path: str) -> None:
    with pytest.raises(HubError, match="would leave"):
        HubFile(path, 1, "http://hub.example", sha256="0")


def test_no_setting_is_a_token() -> None:
    assert not any("token" in name for name in FetchSettings.model_fields)
