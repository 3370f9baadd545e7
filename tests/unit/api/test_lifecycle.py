"""What Kubernetes sees of a worker, from the first second to the last."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import httpx
import pytest

from tests.unit.api.conftest import eventually, start
from tests.unit.api.double import SpeechDouble


def test_before_the_model_is_loaded_it_lives_is_not_ready_and_has_no_load():
    service = SpeechDouble()
    service.may_start.clear()
    server = start(service)
    try:
        eventually(lambda: server.get("/readyz").json() == {"phase": "WarmingUp"})
        assert server.get("/healthz").status_code == 200
        assert server.get("/readyz").status_code == 503
        load = server.get("/load")
        assert (load.status_code, load.content) == (503, b"")
        refused = server.speak()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_ready"
        assert refused.headers["retry-after"] == "5"
        assert server.metric("cosyvoice_ready") == 0
        service.may_start.set()
        server.wait_ready()
        assert server.metric("cosyvoice_ready") == 1
    finally:
        service.may_start.set()
        server.end()


def test_the_load_report_is_the_contracts(server, service):
    assert server.get("/load").json() == {
        "pool_card": "",
        "demand": 0.0,
        "capacity": 2.0,
        "capacity_from": "Catalogue",
        "gpu_load": 0.0,
        "gpu_utilization": None,
        "gpu_memory": 0.25,
        "running": 0,
        "queued": 0,
        "draining": False,
    }


def test_a_stuck_engine_turns_liveness_off(server, service):
    service.alive = False
    assert server.get("/healthz").status_code == 503


def test_sigterm_lets_running_streams_finish_and_takes_no_more():
    service = SpeechDouble(pieces=4, pause=0.3)
    server = start(service).wait_ready()
    answers: list[httpx.Response] = []
    running = threading.Thread(target=lambda: answers.append(server.speak(response_format="pcm")))
    running.start()
    eventually(lambda: service.running)
    server.server.terminate()
    eventually(lambda: server.get("/readyz").status_code == 503)
    assert server.get("/readyz").json() == {"phase": "Draining"}
    assert server.get("/load").json()["draining"] is True
    assert server.get("/healthz").status_code == 200
    refused = server.speak()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    running.join(10)
    assert len(answers[0].content) == int(4 * 0.2 * 24000) * 2
    server.thread.join(10)
    assert not server.thread.is_alive()


def test_a_stream_that_outlasts_the_drain_time_is_cut_and_the_worker_ends():
    service = SpeechDouble(pieces=1000, pause=0.1)
    server = start(service, drain_seconds=0.5).wait_ready()
    request = httpx.stream("POST", server.base + "/v1/audio/speech", json={"input": "a", "response_format": "pcm"})
    with request as response:
        pieces = response.iter_raw()
        next(pieces)
        server.server.terminate()
        with pytest.raises(httpx.HTTPError):
            list(pieces)
    server.thread.join(15)
    assert not server.thread.is_alive()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
    return subprocess.run(
        [sys.executable, "-m", "cosyvoice_worker", *arguments],
        env=clean | {"PYTHONPATH": "worker:contract"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
def test_a_wrong_setting_ends_the_start_with_its_name_value_and_mend(environment, line):
    ended = run(**environment)
    assert ended.returncode == 2
    assert line in ended.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"COSYVOICE_MODEL_DIR": "nowhere", "COSYVOICE_DEVICE": "cpu"}, "nowhere"),
        ({"COSYVOICE_MODEL_BUILTIN": "Nobody", "COSYVOICE_DEVICE": "cpu"}, "COSYVOICE_MODEL_BUILTIN=Nobody"),
        (
            {"COSYVOICE_MODEL_DIR": "nowhere", "COSYVOICE_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""},
            "COSYVOICE_DEVICE=cuda",
        ),
        (
            {"COSYVOICE_MODEL_DIR": "nowhere", "COSYVOICE_DEVICE": "cpu", "COSYVOICE_PRECISION": "bf16"},
            "COSYVOICE_PRECISION=bf16: a CPU computes in fp32",
        ),
    ],
)
def test_what_cannot_be_served_ends_the_process_with_one_clear_last_line(environment, words):
    ended = run(COSYVOICE_LISTEN_PORT="0", **environment)
    assert ended.returncode == 1
    assert words in ended.stderr.strip().splitlines()[-1]


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        ended = run(COSYVOICE_MODEL_DIR="a", COSYVOICE_DEVICE="cpu", COSYVOICE_LISTEN_PORT=str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "COSYVOICE_LISTEN_PORT" in ended.stderr.strip().splitlines()[-1]


def test_a_real_sigterm_ends_a_worker_that_still_loads_with_status_0():
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from cosyvoice_worker.server import serve
        from cosyvoice_worker.settings import Settings
        async def load(settings):
            await asyncio.sleep(60)
        settings = Settings(model_dir=Path("a"), listen_port=0)
        asyncio.run(serve(settings, load, lambda server: print("listening", flush=True)))
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": "worker:contract"}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"
    eventually(lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
