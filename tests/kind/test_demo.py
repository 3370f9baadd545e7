"""What `make demo` shows, as assertions: in the order of this file, because the last test removes everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import openai
import pytest
import soxr
from pocketsphinx import Decoder

from hack import demo, speech
from tests.cluster.kind import Cluster

pytestmark = [
    pytest.mark.kind,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

SENTENCES = (Path(__file__).parent / "sentences.txt").read_text().splitlines()
WORST_WORD_ERROR_RATE = 0.25
RECOGNISER_RATE = 16_000


def test_kubectl_tells_that_the_service_is_ready(cluster: Cluster) -> None:
    service = json.loads(cluster.run("kubectl", "get", "cvs", demo.SERVICE, "-o", "json"))
    conditions = {condition["type"]: condition["status"] for condition in service["status"]["conditions"]}
    assert (conditions["Accepted"], conditions["Ready"]) == ("True", "True")
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"]


def test_the_autoscaler_reads_the_workers_load(cluster: Cluster) -> None:
    demo.wait_until(lambda: _autoscaler_condition(cluster, "ScalingActive") == "True", 60, cluster)


@pytest.mark.listen
def test_a_recogniser_understands_what_the_cluster_says(cluster: Cluster) -> None:
    heard = []
    with demo.port_forward(cluster) as url:
        api = speech.client(url)
        for sentence in SENTENCES:
            heard.append(_recognise(speech.speak(api, sentence, seed=0)))
    spoken = [sentence.rstrip(".?") for sentence in SENTENCES]
    word_error_rate = jiwer.wer(spoken, heard)
    print(f"word error rate {word_error_rate:.1%}")
    assert word_error_rate <= WORST_WORD_ERROR_RATE, list(zip(spoken, heard, strict=True))


def test_load_brings_workers_and_its_end_takes_them_away_and_no_request_is_lost(cluster: Cluster) -> None:
    with demo.service_proxy(cluster) as url:
        with speech.Load(url, SENTENCES, demo.LOAD_CLIENTS) as load:
            demo.wait_until(lambda: len(demo.working_workers(cluster)) >= 2, 420, cluster)
            loaded = len(demo.worker_pods(cluster))
        # One listener stays while workers go: what they have accepted must be finished, not cut.
        with speech.Load(url, SENTENCES, clients=1, listening=True) as remaining:
            demo.wait_until(lambda: remaining.finished and len(demo.worker_pods(cluster)) < loaded, 420, cluster)
    demo.wait_until(lambda: len(demo.worker_pods(cluster)) == 1, 420, cluster)
    assert load.lost + remaining.lost == [], cluster.run("kubectl", "get", "events", "--sort-by=.lastTimestamp")
    assert load.finished > 0
    reasons = [event["message"] for event in _events(cluster, "SuccessfulRescale")]
    assert any("gpu_load" in reason and "above target" in reason for reason in reasons), reasons
    assert any("below target" in reason for reason in reasons), reasons


def test_empty_text_is_refused_in_openais_form(cluster: Cluster) -> None:
    with demo.port_forward(cluster) as url, pytest.raises(openai.BadRequestError, match="input"):
        speech.speak(speech.client(url), "")


def test_removing_everything_hangs_no_other_namespace(cluster: Cluster) -> None:
    demo.uninstall(cluster)
    demo.delete_a_bystander(cluster)
    service = f"tts.cosyvoice.io/service={demo.SERVICE}"
    assert cluster.run("kubectl", "get", "all,hpa,pdb,configmaps", "-l", service, "-o", "name") == ""
    left = cluster.run("kubectl", "get", "apiservices,clusterroles,clusterrolebindings,crds", "-o", "name")
    assert [name for name in left.splitlines() if "cosyvoice" in name or "custom.metrics" in name] == []


def _autoscaler_condition(cluster: Cluster, kind: str) -> str | None:
    (autoscaler,) = json.loads(cluster.run("kubectl", "get", "hpa", "-o", "json"))["items"]
    conditions = autoscaler["status"].get("conditions", [])
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)


def _events(cluster: Cluster, reason: str) -> list[dict[str, Any]]:
    found = cluster.run("kubectl", "get", "events", "--field-selector", f"reason={reason}", "-o", "json")
    events: list[dict[str, Any]] = json.loads(found)["items"]
    return events


def _recognise(spoken: speech.Speech) -> str:
    """What pocketsphinx hears, with the language model that it brings."""
    samples = np.frombuffer(spoken.samples, dtype="<i2").astype(np.float32)
    resampled = soxr.resample(samples, spoken.sample_rate, RECOGNISER_RATE)
    decoder = Decoder(samprate=RECOGNISER_RATE, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(np.clip(resampled, -32768, 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return hypothesis.hypstr if hypothesis is not None else ""
