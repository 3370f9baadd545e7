"""Builds Kubernetes and its companions from Go modules, which can be had where no container registry is reached.

Everything is kept in the cache (`COSYVOICE_CACHE`, by default ~/.cache/cosyvoice-operator), outside of the clone. A
build that is interrupted leaves nothing half-made: a binary gets its name when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.clock import step

CACHE: Final = Path(os.environ.get("COSYVOICE_CACHE", Path.home() / ".cache" / "cosyvoice-operator"))
PROGRAMS: Final = Path(__file__).parent / "programs"
"""One Go module that pins every program and all they are made of, so that what they share is compiled once."""


def digest(*folders: Path) -> str:
    """A short digest of every file in `folders`: what is made of them is made again when they change."""
    sha256 = hashlib.sha256()
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            sha256.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return sha256.hexdigest()[:12]


BIN: Final = CACHE / f"bin-{digest(PROGRAMS)}"
KUBERNETES: Final = "v1.34.4"
"""The last minor whose kubelet starts on cgroup v1 without a switch."""

CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""What `tests.cluster.control_plane` runs."""
NODE: Final = ("kubelet", "kubeadm", "kube-proxy", "coredns")
"""What a node has besides."""
TOOLS: Final = ("kind", "helm")


_PACKAGES: Final = {
    **{
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm")
    },
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
    "coredns": "cosyvoice.io/cluster/coredns",
    "kind": "sigs.k8s.io/kind",
    "helm": "helm.sh/helm/v3/cmd/helm",
}

_VERSIONS: Final = {
    "k8s.io/component-base/version.gitVersion": KUBERNETES,
    "k8s.io/component-base/version.gitMajor": "1",
    "k8s.io/component-base/version.gitMinor": KUBERNETES.split(".")[1],
    "k8s.io/client-go/pkg/version.gitVersion": KUBERNETES,
    "helm.sh/helm/v3/internal/version.version": "v3.19.5",
}
"""Variables that the programs' own build scripts set; kubeadm and helm need theirs."""


def build(names: Sequence[str]) -> None:
    """Build what is missing of `names`, in one `go build`.

    Raises RuntimeError with the compiler's last lines, or with how to get Go where it is missing.
    """
    if all((BIN / name).exists() for name in names):
        return
    with locked("binaries"):
        missing = [name for name in names if not (BIN / name).exists()]
        if missing:
            with step(f"building {', '.join(missing)} from Go modules"):
                _go_build(missing)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time make `name`; the lock goes with the process that holds it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go_build(names: list[str]) -> None:
    if shutil.which("go") is None:
        raise RuntimeError("Go is missing: install Go >= 1.24 (https://go.dev/doc/install) and put it on PATH")
    BIN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="build-") as made:
        variables = " ".join(f"-X {variable}={value}" for variable, value in _VERSIONS.items())
        options = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {variables}", "-o", made]
        done = subprocess.run(
            ["go", "build", *options, *(_PACKAGES[name] for name in names)],
            cwd=PROGRAMS,
            env=os.environ | {"CGO_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError("go build failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))
        for name in names:
            # go names a program after its package; a major version suffix (v3) is not the name.
            package = _PACKAGES[name].split("/")
            built = package[-2] if package[-1].startswith("v") and package[-1][1:].isdigit() else package[-1]
            (Path(made) / built).rename(BIN / name)
