"""Builds Kubernetes and its companions from their Go modules: these can be had where no container registry is reached.

Everything is kept in the cache (`COSYVOICE_CACHE`, by default ~/.cache/cosyvoice-operator), outside of the clone. A
build that is interrupted leaves nothing half-made: a binary gets its name when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.clock import step

CACHE: Final = Path(os.environ.get("COSYVOICE_CACHE", Path.home() / ".cache" / "cosyvoice-operator"))
BIN: Final = CACHE / "bin"
MODULES: Final = Path(__file__).parent / "modules"
KUBERNETES: Final = "v1.34.4"
"""The last minor whose kubelet starts on cgroup v1 without a switch."""

CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""What `tests.cluster.control_plane` runs."""
NODE: Final = ("kubelet", "kubeadm", "kube-proxy", "coredns")
"""What a node has besides."""
TOOLS: Final = ("kind", "helm")


@dataclass(frozen=True)
class _Program:
    """Where one binary comes from: a folder of modules/, which pins every version, and a package in reach of it."""

    module: str
    package: str
    ldflags: str = ""


_KUBERNETES_VERSION = " ".join(
    f"-X {variable}={value}"
    for variable, value in {
        "k8s.io/component-base/version.gitVersion": KUBERNETES,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": KUBERNETES.split(".")[1],
        "k8s.io/client-go/pkg/version.gitVersion": KUBERNETES,
    }.items()
)

_PROGRAMS: Final = {
    **{
        name: _Program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_VERSION)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm")
    },
    "kubectl": _Program("kubernetes", "k8s.io/kubernetes/cmd/kubectl", _KUBERNETES_VERSION),
    "etcd": _Program("etcd", "go.etcd.io/etcd/server/v3"),
    "coredns": _Program("coredns", "github.com/coredns/coredns"),
    "kind": _Program("kind", "sigs.k8s.io/kind"),
    "helm": _Program("helm", "helm.sh/helm/v3/cmd/helm", "-X helm.sh/helm/v3/internal/version.version=v3.19.5"),
    "kwok": _Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}


def build(names: Iterable[str]) -> None:
    """Build what is missing of `names`, one `go build` for each module.

    Raises RuntimeError with the compiler's last lines, or with how to get Go where it is missing.
    """
    if all((BIN / name).exists() for name in names):
        return
    with locked("binaries"):
        missing = [name for name in names if not (BIN / name).exists()]
        groups: dict[tuple[str, str], list[str]] = {}
        for name in missing:
            groups.setdefault((_PROGRAMS[name].module, _PROGRAMS[name].ldflags), []).append(name)
        for (module, ldflags), members in groups.items():
            with step(f"building {', '.join(members)} from Go modules"):
                _go_build(MODULES / module, ldflags, members)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time make `name`; the lock goes with the process that holds it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go_build(module: Path, ldflags: str, names: list[str]) -> None:
    if shutil.which("go") is None:
        raise RuntimeError("Go is missing: install Go >= 1.26 (https://go.dev/doc/install) and put it on PATH")
    BIN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="build-") as made:
        done = subprocess.run(
            ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {ldflags}", "-o", made]
            + [_PROGRAMS[name].package for name in names],
            cwd=module,
            env=os.environ | {"CGO_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"go build in {module} failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))
        for name in names:
            # go names a program after its package; a major version suffix (v3) is not the name.
            package = _PROGRAMS[name].package.split("/")
            built = package[-2] if package[-1].startswith("v") and package[-1][1:].isdigit() else package[-1]
            (Path(made) / built).rename(BIN / name)
