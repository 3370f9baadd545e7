"""A kind cluster: by what the machine has where a registry is reached, else by what this folder makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.cluster import binaries, engine, images
from tests.cluster.binaries import BIN, CACHE
from tests.cluster.clock import say, step

DEFAULT_NAME: Final = "cosyvoice-demo"
_SERVICE_NETWORK = "10.96.0.0/16"
"""kind's default."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up, and the commands that fit it."""

    name: str
    kubeconfig: Path
    kubectl: str
    helm: str

    @property
    def environment(self) -> dict[str, str]:
        """The process's environment, with which kubectl and helm find this cluster and no other."""
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def run(self, *command: str, stdin: str | None = None, check: bool = True) -> str:
        """Run `kubectl ...` or `helm ...` and return what it prints; raises RuntimeError with its message."""
        program = {"kubectl": self.kubectl, "helm": self.helm}[command[0]]
        done = subprocess.run(
            [program, *command[1:]], input=stdin, env=self.environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def load(self, tag: str) -> None:
        """Bring an image from the engine onto the node, unless it is there; its tag must change with its content."""
        node = f"{self.name}-control-plane"
        there = engine.docker("exec", node, "ctr", "--namespace=k8s.io", "images", "list", "--quiet")
        if f"docker.io/library/{tag}" not in there.split():
            with step(f"loading {tag} ({images.size_mb(tag):.0f} MB) into cluster {self.name}"):
                _kind("load", "docker-image", tag, "--name", self.name)


def up(name: str = DEFAULT_NAME) -> Cluster:
    """Return the cluster `name`, created where it is missing; one that was left half-made is made again.

    Raises RuntimeError where a cluster of that name exists that this module did not make: it is left alone.
    """
    engine.ensure()
    cluster = Cluster(name, CACHE / f"kubeconfig-{name}", _tool("kubectl"), _tool("helm"))
    with binaries.locked(f"kind-{name}"):
        if _exists(name):
            if not _made_here(name).exists():
                raise RuntimeError(
                    f"a kind cluster {name!r} is there that this project did not make; "
                    f"remove it yourself if nobody needs it: kind delete cluster --name {name}"
                )
            if _healthy(cluster):
                say(f"cluster {name} is up")
                return cluster
            with step(f"deleting cluster {name}, which does not answer"):
                _kind("delete", "cluster", "--name", name)
        with step(f"creating cluster {name}"):
            _made_here(name).touch()  # first, so that what an interruption leaves is known for ours
            _create(cluster)
    return cluster


def down(name: str = DEFAULT_NAME) -> None:
    """Delete the cluster `name`, whole or half-made; without one that was made here, nothing is started or touched."""
    if not _made_here(name).exists():
        return
    engine.ensure()
    if _exists(name):
        _kind("delete", "cluster", "--name", name)
    (CACHE / f"kubeconfig-{name}").unlink(missing_ok=True)
    _made_here(name).unlink()


def existing(name: str = DEFAULT_NAME) -> Cluster | None:
    """The cluster `name` if it was made here, is up and answers."""
    if not _made_here(name).exists():
        return None
    engine.ensure()
    cluster = Cluster(name, CACHE / f"kubeconfig-{name}", _tool("kubectl"), _tool("helm"))
    return cluster if _exists(name) and _healthy(cluster) else None


def prepare() -> None:
    """Make all that `up` needs and that takes long; may run while other work goes on."""
    engine.ensure()
    if images.registry_reachable():
        for name in ("kind", "kubectl", "helm"):
            _tool(name)
    else:
        # Compilers keep the processors busy, debootstrap the network.
        with ThreadPoolExecutor() as pool:
            built = pool.submit(binaries.build, (*binaries.CONTROL_PLANE, *binaries.NODE, *binaries.TOOLS))
            images.base(images.NODE_SUITE)
            built.result()
        images.node_image()


def _tool(name: str) -> str:
    """The program `name`: the machine's own where a registry is reached, else built at the pinned version."""
    if images.registry_reachable() and (found := shutil.which(name)):
        return found
    binaries.build((name,))
    return str(BIN / name)


def _made_here(name: str) -> Path:
    """The file that tells a cluster of ours from one that the user made and called the same."""
    return CACHE / f"kind-{name}.made"


def _exists(name: str) -> bool:
    return name in _kind("get", "clusters").split()


def _healthy(cluster: Cluster) -> bool:
    if not cluster.kubeconfig.exists():
        return False
    ready = subprocess.run(
        [cluster.kubectl, "--request-timeout=10s", "wait", "node", "--all", "--for=condition=Ready", "--timeout=30s"],
        env=cluster.environment,
        capture_output=True,
        check=False,
    )
    return ready.returncode == 0


def _create(cluster: Cluster) -> None:
    options: list[str] = []
    if not images.registry_reachable():
        configuration = CACHE / "kind.yaml"
        configuration.write_text(yaml.safe_dump(_own_image_configuration()))
        options = ["--image", images.node_image(), "--config", str(configuration)]
    _kind(
        "create", "cluster", "--name", cluster.name, "--kubeconfig", str(cluster.kubeconfig), "--wait", "180s", *options
    )
    _keep_service_addresses_inside(cluster)


def _keep_service_addresses_inside(cluster: Cluster) -> None:
    """Refuse connections to Service addresses that kube-proxy does not know yet.

    They would leave by the default route, and where a gateway answers for every address (HTTP 404, say) the API server
    keeps that connection, and an aggregated API of ours stays unavailable. kube-proxy's own rules come before these.
    """
    for chain in ("OUTPUT", "FORWARD"):
        rule = (chain, "--destination", _SERVICE_NETWORK, "--jump", "REJECT")
        engine.docker("exec", f"{cluster.name}-control-plane", "iptables", "--append", *rule)


def _own_image_configuration() -> dict[str, object]:
    # The cluster is thrown away with its data, so etcd need not wait for the disk.
    etcd = {"local": {"dataDir": "/var/lib/etcd", "extraArgs": {"unsafe-no-fsync": "true"}}}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"disableDefaultCNI": True},  # the node image brings a bridge
        "featureGates": {"KubeletInUserNamespace": True},  # the kubelet may lack CAP_SYS_RESOURCE
        "kubeadmConfigPatches": [yaml.safe_dump({"kind": "ClusterConfiguration", "etcd": etcd})],
    }


def _kind(*arguments: str) -> str:
    done = subprocess.run([_tool("kind"), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kind {' '.join(arguments[:3])} failed:\n" + "\n".join(done.stderr.splitlines()[-15:]))
    return done.stdout
