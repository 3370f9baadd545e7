"""What README and docs show works as they show it. Manifests and chart commands: tests/controlplane/test_documents.py."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import documents
from tests.documents import ROOT, Block, Command
from tests.unit.api.conftest import TINY, Running, eventually, running, server, worker_environment

__all__ = ["running", "server"]  # fixtures: a real worker with a tiny model


def test_every_link_leads_to_a_file() -> None:
    broken = [f"{source.relative_to(ROOT)}: {target}" for source, target in documents.links()
              if not (source.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("command", documents.commands("make"), ids=lambda command: command.where)
def test_every_make_target_is_there(command: Command) -> None:
    done = subprocess.run(["make", "--dry-run", "--always-make", *command.words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", documents.commands("docker"), ids=lambda command: command.where)
def test_every_image_is_built_from_a_dockerfile_that_knows_its_arguments(command: Command) -> None:
    words = command.words
    assert words[1] == "build", "only builds are shown; another command needs a test of its own"
    recipe = (ROOT / words[words.index("-f") + 1]).read_text()
    arguments = [words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--build-arg"]
    assert set(arguments) <= set(re.findall(r"^ARG (\w+)", recipe, re.MULTILINE))


@pytest.mark.parametrize("block", documents.blocks("python"), ids=lambda block: block.where)
def test_every_client_gets_its_audio(block: Block, server: Running, tmp_path: Path) -> None:
    shown = re.sub(r"http://[\w.-]+\.svc\b", server.base, block.text)
    program = shown.replace('model="CosyVoice2-0.5B"', 'model="Tiny"')
    assert shown != block.text, "the address of a service is what the test replaces"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [path.suffix for path in tmp_path.iterdir() if path.stat().st_size > 1000] == [".wav"]


@pytest.mark.parametrize("command", documents.commands("curl"), ids=lambda command: command.where)
def test_every_curl_gets_its_answer(command: Command, server: Running) -> None:
    words = [re.sub(r"http://[\w.-]+\.svc\b", server.base, word) for word in command.words]
    done = subprocess.run([*words, "--fail", "--silent", "--show-error", "--max-time", "60"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout) > 1000


@pytest.mark.parametrize("command", documents.commands("python", "cosyvoice-worker"), ids=lambda command: command.where)
def test_every_worker_starts(command: Command) -> None:
    words = command.words
    if words[0] == "cosyvoice-worker":
        words = ["python", "-m", "cosyvoice_worker", *words[1:]]
    assert words[1:3] == ["-m", "cosyvoice_worker"], "another program needs a test of its own"
    process = subprocess.Popen(
        [sys.executable, *words[1:], "--listen-host=127.0.0.1", "--listen-port=0"],
        cwd=ROOT, env=worker_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    assert process.stdout is not None
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.extend(process.stdout), daemon=True)
    reader.start()
    try:
        eventually(lambda: process.poll() is not None or any("ready" in line for line in told), seconds=120)
        assert process.poll() is None, "".join(told)
    finally:
        process.terminate()
        assert process.wait(60) == 0
