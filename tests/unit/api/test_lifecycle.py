"""What Kubernetes sees of a worker, from the first second to the last."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx
import numpy as np
import pytest
import torch

from cosyvoice_contract import LoadReport
from cosyvoice_worker.__main__ import main
from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.scheduling import service as scheduling
from cosyvoice_worker.scheduling.service import SpeechService
from cosyvoice_worker.settings import Settings
from tests.unit.api.conftest import TINY, Running, eventually, start, worker_environment


def test_before_the_model_is_loaded_it_lives_is_not_ready_and_has_no_load():
    async def load(_: Settings) -> Engine:
        await asyncio.Event().wait()
        raise AssertionError

    server = start(load)
    try:
        eventually(lambda: server.get("/readyz").json() == {"phase": "Loading"})
        assert server.get("/healthz").status_code == 200
        assert server.get("/readyz").status_code == 503
        load_report = server.get("/load")
        assert (load_report.status_code, load_report.content) == (503, b"")
        refused = server.speak()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_ready"
        assert refused.headers["retry-after"] == "5"
        assert server.metric("cosyvoice_ready") == 0
    finally:
        server.end()


def test_the_load_report_is_the_contracts_and_idle_is_an_explicit_zero(server):
    report = server.load_when_ready
    assert set(report) == set(LoadReport.__annotations__)
    assert report["capacity"] > 0
    assert report["capacity_from"] == "Measured"
    assert (report["demand"], report["gpu_load"], report["running"], report["queued"]) == (0, 0, 0, 0)
    assert report["gpu_utilization"] is None


def test_a_stuck_engine_turns_liveness_off(server, monkeypatch):
    assert server.get("/healthz").status_code == 200
    monkeypatch.setattr(SpeechService, "alive", False)
    assert server.get("/healthz").status_code == 503


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


TEXT = "One sentence after another, and so on and on. " * 4


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Running]:
    """A ready server that a test may end."""
    monkeypatch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)

    def started(**settings: object) -> Running:
        server = start(**settings)
        eventually(lambda: server.get("/readyz").status_code == 200, seconds=120)
        return server

    return started


def test_a_draining_worker_lets_running_streams_finish_and_takes_no_more(own_server):
    server = own_server()
    body = {"input": TEXT, "response_format": "pcm", "seed": 3}
    whole = server.speak(**body).content
    with httpx.stream("POST", server.base + "/v1/audio/speech", json=body, timeout=120) as response:
        pieces = response.iter_raw()
        received = next(pieces)
        server.server.terminate()
        eventually(lambda: server.get("/readyz").json() == {"phase": "Draining"})
        assert server.get("/load").json()["draining"] is True
        assert server.get("/healthz").status_code == 200
        refused = server.speak(**body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        received += b"".join(pieces)
    samples, expected = np.frombuffer(received, "<i2"), np.frombuffer(whole, "<i2")
    assert len(samples) == len(expected)
    difference = samples.astype(float) - expected
    assert np.sqrt((difference**2).mean()) < 33  # a thousandth: steps batch differently in time
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_a_stream_that_outlasts_the_drain_time_is_cut_and_never_looks_whole(own_server):
    server = own_server(drain_seconds=0.2)
    body = {"input": TEXT * 15, "response_format": "pcm"}
    with httpx.stream("POST", server.base + "/v1/audio/speech", json=body, timeout=120) as response:
        pieces = response.iter_raw()
        next(pieces)
        server.server.terminate()
        with pytest.raises(httpx.TransportError):
            list(pieces)
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_sigterm_ends_the_process_with_status_0_even_while_it_loads():
    process = subprocess.Popen(
        [sys.executable, "-m", "cosyvoice_worker", "--model-dir", str(TINY), "--device", "cpu", "--listen-port", "0"],
        env=worker_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "Started server process" in line:
            break
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(60) == 0
    assert '"message": "stopped"' in rest


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """The command, in this process: the environment it gets, and how it ends."""
    handlers, level = logging.root.handlers[:], logging.root.level

    def command(*arguments: str, **environment: str) -> Ended:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        status = main(arguments)
        return Ended(status, *capsys.readouterr())

    yield command
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"COSYVOICE_DEVICE": "gpu"}, "COSYVOICE_DEVICE='gpu': Input should be 'cuda' or 'cpu'"),
        (
            {"COSYVOICE_MODEL_DIR": "a", "COSYVOICE_MODEL_RANDOM": "Tiny:0"},
            "set exactly one of COSYVOICE_MODEL_DIR, COSYVOICE_MODEL_BUILTIN, COSYVOICE_MODEL_RANDOM",
        ),
        (
            {"COSYVOICE_MODEL_DIR": "a", "COSYVOICE_STREAMS": "-1"},
            "COSYVOICE_STREAMS='-1': Input should be greater than 0",
        ),
        ({"COSYVOICE_MODEL_RANDOM": "Tiny"}, "COSYVOICE_MODEL_RANDOM='Tiny': write <size>:<seed>, e.g. Tiny:0"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_its_name_value_and_mend(run, environment, line):
    ended = run(**environment)
    assert ended.returncode == 2
    assert line in ended.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"COSYVOICE_MODEL_DIR": "nowhere", "COSYVOICE_DEVICE": "cpu"}, "nowhere"),
        ({"COSYVOICE_MODEL_BUILTIN": "Nobody", "COSYVOICE_DEVICE": "cpu"}, "COSYVOICE_MODEL_BUILTIN=Nobody"),
        (
            {"COSYVOICE_MODEL_DIR": "nowhere", "COSYVOICE_DEVICE": "cpu", "COSYVOICE_PRECISION": "bf16"},
            "COSYVOICE_PRECISION=bf16: a CPU computes in fp32",
        ),
    ],
)
def test_what_cannot_be_served_ends_the_process_with_one_clear_last_line(run, environment, words):
    ended = run(COSYVOICE_LISTEN_PORT="0", **environment)
    assert ended.returncode == 1
    assert words in ended.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_worker_told_cuda_that_finds_no_gpu_does_not_start_and_never_falls_back(run):
    ended = run(COSYVOICE_MODEL_DIR=str(TINY), COSYVOICE_DEVICE="cuda", COSYVOICE_LISTEN_PORT="0")
    assert ended.returncode == 1
    assert "COSYVOICE_DEVICE=cuda" in ended.stderr.strip().splitlines()[-1]


def test_a_port_in_use_is_named(run):
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        ended = run(COSYVOICE_MODEL_DIR="a", COSYVOICE_DEVICE="cpu", COSYVOICE_LISTEN_PORT=str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "COSYVOICE_LISTEN_PORT" in ended.stderr.strip().splitlines()[-1]


def test_verify_prints_the_versions_and_the_model(run):
    told = run("verify", "--model-dir", str(TINY), "--device", "cpu")
    assert told.returncode == 0
    for name in ("python", "torch", "cuda", "driver", "device", "model"):
        assert f"\n{name} " in "\n" + told.stdout
    assert "CosyVoice2, 24000 Hz" in told.stdout
