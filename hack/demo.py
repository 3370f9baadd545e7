"""From nothing to speech that Kubernetes scales: `make demo`, and `make demo-down` to remove it.

Every stage looks at what is there first, so that both may be repeated, and interrupted at any point.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hack import speech
from tests.cluster import engine, images, kind
from tests.cluster.binaries import CACHE
from tests.cluster.clock import say, step
from tests.cluster.kind import Cluster

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "cosyvoice-operator"
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
OPERATOR_NAMESPACE = "cosyvoice-system"
RELEASE = "cosyvoice-operator"
CRD = "cosyvoiceservices.tts.cosyvoice.io"
SERVICE = "hello"
"""The name of the CosyVoiceService in QUICKSTART, and so of its Service; in the default namespace."""
OPERATOR_REPOSITORY = "cosyvoice-operator"
WORKER_REPOSITORY = "cosyvoice-worker"
_CPU = "-cpu"
"""What the chart appends to the worker image's tag for cards without a GPU."""
SENTENCE = "Good morning, how are you today?"
LOAD_CLIENTS = 16
"""Each asks for the next sentence as soon as it has one: more than any worker on a CPU gives."""
_SENTENCES = (ROOT / "tests" / "kind" / "sentences.txt").read_text().splitlines()
_WORKER_PORT = 8000


def up() -> None:
    cluster = make_cluster()
    install(cluster)
    apply_quickstart(cluster)
    with port_forward(cluster) as url:
        hello(url)
    scale(cluster)
    say("look around:")
    if engine.is_own():
        print(f"  export DOCKER_HOST=unix://{engine.SOCKET}")
    print(f"  export KUBECONFIG={cluster.kubeconfig}")
    print(f"  alias kubectl={cluster.kubectl}")
    print("  kubectl get cosyvoiceservices,hpa,deploy,pods")
    print(f"  kubectl describe cosyvoiceservice {SERVICE}")
    print(f"  kubectl port-forward service/{SERVICE} 8080:80    # then: http://127.0.0.1:8080/v1/audio/speech")
    print("  make demo-down                                # removes all of it")


def down() -> None:
    cluster = kind.existing()
    if cluster is not None:
        with step("uninstalling"):
            uninstall(cluster)
        with step("deleting a namespace that has nothing to do with us"):
            delete_a_bystander(cluster)
    with step("deleting the cluster"):
        kind.down()
    engine.stop()
    say(f"removed; built programs and images stay in {CACHE}")


def make_cluster(name: str = kind.DEFAULT_NAME) -> Cluster:
    """Build what is missing, create the cluster and bring the images onto its node."""
    prepare()
    cluster = kind.up(name)
    for tag in (operator_image(), worker_image()):
        cluster.load(tag)
    return cluster


def prepare() -> None:
    """Build programs and images; what is there already is left as it is."""
    with step("looking for Docker"):
        engine.ensure()
    say("a registry is reached" if images.registry_reachable() else "no registry is reached: all is made here")
    # Compilers keep the processors busy and image builds the network, so both go on at once.
    with ThreadPoolExecutor() as pool:
        prepared = pool.submit(kind.prepare)
        build_images()
        prepared.result()


def build_images() -> None:
    base = {"BASE_IMAGE": images.base("trixie")}
    with step("building the operator image"):
        images.build(ROOT / "Dockerfile.operator", f"{OPERATOR_REPOSITORY}:demo", arguments=base)
    with step("building the worker image, lean CPU variant"):
        images.build(ROOT / "Dockerfile.worker", f"{WORKER_REPOSITORY}:demo{_CPU}", arguments=base | {"VARIANT": "cpu"})


def operator_image() -> str:
    """The operator image under a tag that changes with its content, so that an upgrade restarts what changed."""
    return images.tag_by_content(f"{OPERATOR_REPOSITORY}:demo", OPERATOR_REPOSITORY)


def worker_image() -> str:
    return images.tag_by_content(f"{WORKER_REPOSITORY}:demo{_CPU}", WORKER_REPOSITORY, suffix=_CPU)


def install(cluster: Cluster) -> None:
    with step("installing the chart"):
        values = {
            "image.repository": OPERATOR_REPOSITORY,
            "image.tag": operator_image().partition(":")[2],
            "workerImage.repository": WORKER_REPOSITORY,
            "workerImage.tag": worker_image().partition(":")[2].removesuffix(_CPU),
        }
        options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        here = ("--namespace", OPERATOR_NAMESPACE)
        if RELEASE in cluster.run("helm", "list", "--pending", "--short", *here).split():
            # Helm refuses to touch a release on which an interrupted command left its mark.
            cluster.run("helm", "uninstall", RELEASE, *here, "--wait")
        try:
            cluster.run(
                *("helm", "upgrade", "--install", RELEASE, str(CHART), "--create-namespace", *here),
                *("--wait", "--timeout", "3m", *options),
            )
        except RuntimeError as error:
            pods = cluster.run("kubectl", "get", "pods", *here)
            logs = cluster.run(
                *("kubectl", "logs", *here, "--prefix", "--tail=5", "--all-containers"),
                *("-l", f"app.kubernetes.io/instance={RELEASE}"),
                check=False,
            )
            raise RuntimeError(f"{error}\n{pods}{logs}") from error


def apply_quickstart(cluster: Cluster) -> None:
    with step(f"applying {QUICKSTART.relative_to(ROOT)} and waiting for it to be ready"):
        cluster.run("kubectl", "apply", "-f", str(QUICKSTART))
        try:
            cluster.run(
                *("kubectl", "wait", "--for=condition=Ready", f"cosyvoiceservice/{SERVICE}", "--timeout=300s"),
            )
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{cluster.run('kubectl', 'describe', 'cosyvoiceservice', SERVICE)}") from error
    show(cluster)


def hello(url: str) -> None:
    """Speak one sentence and keep it."""
    spoken = speech.speak(speech.client(url), SENTENCE)
    path = ROOT / "build" / "demo" / "hello.wav"
    spoken.save(path)
    say(
        f"{SENTENCE!r} is in {path.relative_to(ROOT)}: {spoken.duration:.2f} s of audio, first audio after "
        f"{spoken.first_audio:.2f} s, all after {spoken.total:.2f} s (RTF {spoken.real_time_factor:.2f})"
    )


def scale(cluster: Cluster) -> None:
    """Put load on the service until two workers work, take it away until one is left."""
    with service_proxy(cluster) as url, speech.Load(url, _SENTENCES, LOAD_CLIENTS) as load:
        with step(f"{LOAD_CLIENTS} clients at once, until a second worker works"):
            wait_until(lambda: len(working_workers(cluster)) >= 2, 420, cluster)
        show(cluster)
    say(str(load))
    if load.lost:
        raise RuntimeError("requests were lost:\n" + "\n".join(load.lost[:5]))
    with step("no client, until one worker is left"):
        wait_until(lambda: len(worker_pods(cluster)) == 1 and replicas(cluster) == 1, 420, cluster)
    show(cluster)


def worker_pods(cluster: Cluster) -> list[dict[str, Any]]:
    pods = cluster.run("kubectl", "get", "pods", "-l", f"tts.cosyvoice.io/service={SERVICE}", "-o", "json")
    found: list[dict[str, Any]] = json.loads(pods)["items"]
    return found


def replicas(cluster: Cluster) -> int:
    """How many workers the autoscaler asks for."""
    autoscalers = json.loads(cluster.run("kubectl", "get", "hpa", "-o", "json"))["items"]
    return sum(int(autoscaler["status"].get("desiredReplicas", 0)) for autoscaler in autoscalers)


def working_workers(cluster: Cluster) -> list[str]:
    """The workers that have audio in the making right now, by what they report themselves."""
    working = []
    for pod in worker_pods(cluster):
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/default/pods/{name}:{_WORKER_PORT}/proxy/load"
        report = cluster.run("kubectl", "get", "--raw", path, check=False)  # a loading worker gives none
        if report and json.loads(report)["running"] > 0:
            working.append(name)
    return working


def wait_until(reached: Callable[[], object], timeout: float, cluster: Cluster) -> None:
    deadline = time.monotonic() + timeout
    while not reached():
        if time.monotonic() > deadline:
            show(cluster)
            raise RuntimeError(f"not reached in {timeout:.0f} s; kubectl describe hpa says why:\n{autoscaler(cluster)}")
        time.sleep(2)


def autoscaler(cluster: Cluster) -> str:
    return cluster.run("kubectl", "describe", "hpa", check=False)


def show(cluster: Cluster) -> None:
    print(cluster.run("kubectl", "get", "cosyvoiceservices,hpa,deploy,pods"), flush=True)


def uninstall(cluster: Cluster) -> None:
    """Remove the service, the release and the CRD; nothing has to be there."""
    if cluster.run("kubectl", "get", "crd", CRD, "--ignore-not-found", "-o", "name"):
        cluster.run("kubectl", "delete", "--ignore-not-found", "-f", str(QUICKSTART), "--timeout=120s")
    cluster.run(
        *("helm", "uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found"),
        *("--wait", "--timeout", "3m"),
    )
    cluster.run("kubectl", "delete", "crd", CRD, "--ignore-not-found", "--timeout=60s")
    cluster.run("kubectl", "delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--timeout=120s")


def delete_a_bystander(cluster: Cluster) -> None:
    """Deleting a namespace asks every API that is registered; one that does not answer any more would hang it."""
    cluster.run("kubectl", "create", "namespace", "bystander", check=False)
    cluster.run("kubectl", "delete", "namespace", "bystander", "--timeout=60s")


@contextlib.contextmanager
def port_forward(cluster: Cluster) -> Iterator[str]:
    """The Service at a loopback address; kubectl picks one of its workers and stays with it."""
    with _kubectl_serving(cluster, "port-forward", f"service/{SERVICE}", ":80") as address:
        yield f"http://{address}"


@contextlib.contextmanager
def service_proxy(cluster: Cluster) -> Iterator[str]:
    """The Service through the API server, which picks one of its ready workers for each request."""
    with _kubectl_serving(cluster, "proxy", "--port=0") as address:
        yield f"http://{address}/api/v1/namespaces/default/services/{SERVICE}:80/proxy"


@contextlib.contextmanager
def _kubectl_serving(cluster: Cluster, *arguments: str) -> Iterator[str]:
    process = subprocess.Popen(
        [cluster.kubectl, *arguments],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = (
            process.stdout.readline()
        )  # "Forwarding from 127.0.0.1:1234 -> 8000", "Starting to serve on 127.0.0.1:1234"
        if "127.0.0.1:" not in line:
            raise RuntimeError(f"kubectl {' '.join(arguments)} failed: {line}{process.stdout.read()}")
        yield "127.0.0.1:" + line.partition("127.0.0.1:")[2].split()[0]
    finally:
        process.terminate()
        process.wait()


def main(arguments: list[str]) -> int:
    commands = {"up": up, "down": down}
    command = commands.get(" ".join(arguments))
    if command is None:
        print("usage: python3 -m hack.demo up|down")
        return 2
    try:
        command()
    except RuntimeError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
