"""Container images: from a registry where one is reached, else made here from Debian packages and Go binaries."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster import binaries, engine
from tests.cluster.binaries import BIN, CACHE, KUBERNETES, PROGRAMS
from tests.cluster.clock import step
from tests.cluster.engine import docker

NODE_SUITE: Final = "bookworm"
"""Debian of the node image: the last whose systemd boots on cgroup v1."""
_NODE_FILES: Final = Path(__file__).parent / "node-image"
NODE_IMAGE: Final = f"cosyvoice/kind-node:{KUBERNETES}-{binaries.digest(PROGRAMS, _NODE_FILES)}"
_REGISTRY: Final = "registry.k8s.io"
_ETCD_TAG: Final = "3.6.5-0"
_COREDNS_TAG: Final = "v1.12.1"
"""The tags of etcd and CoreDNS that kubeadm of this Kubernetes asks for."""
_PAUSE_TAG: Final = "3.10"
"""The tag in kind's containerd configuration."""

_SLIM_DPKG: Final = """\
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
force-unsafe-io
"""
_SLIM_APT: Final = """\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
APT::Install-Recommends "false";
Acquire::Languages "none";
"""


@functools.cache
def registry_reachable() -> bool:
    """Whether the engine can pull from Docker's registry: it is asked for the small base image that is needed."""
    try:
        pulled = subprocess.run(
            ["docker", "pull", "--quiet", "debian:trixie-slim"], capture_output=True, timeout=180, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return pulled.returncode == 0


def base(suite: str) -> str:
    """Return the tag of a slim Debian image of `suite` (e.g. `trixie`), made by debootstrap where no registry is."""
    if registry_reachable():
        return f"debian:{suite}-slim"
    tag = f"cosyvoice/debian:{suite}-slim"
    with binaries.locked(f"base-{suite}"):
        if not engine.has_image(tag):
            with step(f"making a Debian {suite} base image"):
                _debootstrap(suite, tag)
    return tag


def build(dockerfile: Path, tag: str, *, arguments: Mapping[str, str]) -> None:
    """Build a project image from `dockerfile`, whose folder is the context; unchanged layers come from the cache."""
    options: list[str] = []
    for name, value in (pip_settings() | dict(arguments)).items():
        options += ["--build-arg", f"{name}={value}"]
    if engine.is_own():  # an old engine without BuildKit, on a machine whose own network is the one that works
        options += ["--network", "host"]
    CACHE.mkdir(parents=True, exist_ok=True)
    log = CACHE / f"{dockerfile.name}.log"
    docker("build", *options, "--tag", tag, "--file", dockerfile, dockerfile.parent, log=log)


def tag_by_content(tag: str, repository: str, *, suffix: str = "") -> str:
    """Give the image `tag` a second tag made of its identity, return that, and drop such tags of earlier images."""
    identity = docker("image", "inspect", "--format", "{{.Id}}", tag).strip().removeprefix("sha256:")[:12]
    named = f"{repository}:{identity}{suffix}"
    docker("tag", tag, named)
    for other in docker("images", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
        if re.fullmatch(rf"{re.escape(repository)}:[0-9a-f]{{12}}{re.escape(suffix)}", other) and other != named:
            subprocess.run(["docker", "rmi", other], capture_output=True, check=False)  # stays where it is in use
    return named


def size_mb(tag: str) -> float:
    return int(docker("image", "inspect", "--format", "{{.Size}}", tag)) / 1e6


@functools.cache
def pip_settings() -> dict[str, str]:
    """Where pip on this machine finds packages, as build arguments: the builder's own settings, none by default."""
    settings = {}
    for name in ("index-url", "extra-index-url", "trusted-host"):
        variable = "PIP_" + name.replace("-", "_").upper()
        value = os.environ.get(variable) or _pip_config(name)
        if value:
            settings[variable] = value
    return settings


def _pip_config(name: str) -> str:
    done = subprocess.run(
        ["python3", "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _debootstrap(suite: str, tag: str) -> None:
    if shutil.which("debootstrap") is None:
        engine.install_packages("debootstrap")
    log = CACHE / f"debootstrap-{suite}.log"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="debootstrap-") as root:
        with log.open("wb") as output:
            done = subprocess.run(
                ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, root],
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(f"debootstrap {suite} failed (all of it: {log}):\n{log.read_text()[-1000:]}")
        _make_slim(Path(root))
        # A machine behind an intercepting proxy trusts its certificate; what is built on it has to as well.
        bundle = Path("/etc/ssl/certs/ca-certificates.crt")
        if bundle.exists():
            shutil.copy(bundle, Path(root, "etc/ssl/certs/ca-certificates.crt"))
        archive = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        imported = subprocess.run(
            ["docker", "import", "-", tag], stdin=archive.stdout, capture_output=True, check=False
        )
        if archive.wait() != 0 or imported.returncode != 0:
            raise RuntimeError(f"docker import {tag} failed: {imported.stderr.decode(errors='replace')}")


def _make_slim(root: Path) -> None:
    """Leave out what the registry's `-slim` images leave out, now and in every package installed later."""
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM_DPKG)
    (root / "etc/apt/apt.conf.d/slim").write_text(_SLIM_APT)
    for folder in ("usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for file in (root / "usr/share/doc").rglob("*"):
        if not file.is_dir() and file.name != "copyright":
            file.unlink()


def node_image() -> str:
    """Return the tag of a kind node image with the Kubernetes built here; made where it is missing."""
    binaries.build((*binaries.CONTROL_PLANE, *binaries.NODE))
    base_tag = base(NODE_SUITE)
    with binaries.locked("node-image"):
        if not engine.has_image(NODE_IMAGE):
            with step("making the kind node image"), tempfile.TemporaryDirectory(dir=CACHE, prefix="node-") as work:
                _make_node_image(Path(work), base_tag)
    return NODE_IMAGE


def _make_node_image(work: Path, base_tag: str) -> None:
    kind_module = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind"],
        cwd=PROGRAMS,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # The module cache is read-only; its modes must not come along.
    shutil.copytree(Path(kind_module, "images/base/files"), work / "files", copy_function=shutil.copyfile)
    for folder in (work / "files").rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)
    for file in _NODE_FILES.iterdir():
        shutil.copy(file, work)
    (work / "version").write_text(f"{KUBERNETES}\n")
    for name in ("kubeadm", "kubelet", "kubectl"):
        os.link(BIN / name, work / name)
    base_name = "cosyvoice/kind-base"
    docker("build", "--network", "host", "--build-arg", f"BASE_IMAGE={base_tag}", "--tag", base_name, work)

    subprocess.run(["gcc", "-static", "-Os", "-o", work / "pause", work / "pause.c"], check=True)
    components = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    images = [_program_image(f"{_REGISTRY}/{name}:{KUBERNETES}", "scratch", BIN / name) for name in components]
    images += [
        _program_image(f"{_REGISTRY}/kube-proxy:{KUBERNETES}", base_name, BIN / "kube-proxy"),
        _program_image(f"{_REGISTRY}/etcd:{_ETCD_TAG}", "scratch", BIN / "etcd"),
        _program_image(f"{_REGISTRY}/coredns/coredns:{_COREDNS_TAG}", "scratch", BIN / "coredns", entrypoint=True),
        _program_image(f"{_REGISTRY}/pause:{_PAUSE_TAG}", "scratch", work / "pause", entrypoint=True),
    ]
    # The node's containerd has to know them before it first starts, so they are imported into a running base image.
    container = "cosyvoice-node-image"
    subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=False)
    try:
        unconfined = ("--security-opt", "seccomp=unconfined")
        docker("run", "-d", "--name", container, *unconfined, "--entrypoint", "containerd", base_name)
        _import_images(container, images)
        docker("stop", container)
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        docker("commit", "--change", entrypoint, container, NODE_IMAGE)
    finally:
        subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=False)


def _import_images(container: str, images: list[str]) -> None:
    deadline = time.monotonic() + 30
    while subprocess.run(["docker", "exec", container, "ctr", "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise RuntimeError(f"containerd does not answer in {container}:\n{docker('logs', container)[-1000:]}")
        time.sleep(0.5)
    saved = subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE)
    into = ["docker", "exec", "-i", container, "ctr", "--namespace=k8s.io", "images", "import"]
    imported = subprocess.run(
        [*into, "--no-unpack", "--digests=false", "-"],
        stdin=saved.stdout,
        capture_output=True,
        check=False,
    )
    if saved.wait() != 0 or imported.returncode != 0:
        raise RuntimeError(f"importing images into the node image failed: {imported.stderr.decode(errors='replace')}")


def _program_image(tag: str, base_tag: str, program: Path, *, entrypoint: bool = False) -> str:
    """Make an image of one static program at /usr/local/bin, where kubeadm's manifests name it without a folder."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="image-") as context:
        os.link(program, Path(context, program.name))
        lines = [
            f"FROM {base_tag}",
            "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"COPY {program.name} /usr/local/bin/",
        ]
        if entrypoint:
            lines.append(f'ENTRYPOINT ["/usr/local/bin/{program.name}"]')
        Path(context, "Dockerfile").write_text("\n".join(lines))
        docker("build", "--tag", tag, context)
    return tag
