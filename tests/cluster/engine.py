"""A Docker engine: the one that answers, or Debian's docker.io started here (root only) with its data in the cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.cluster.binaries import CACHE, locked
from tests.cluster.clock import say, step

SOCKET: Final = CACHE / "docker.sock"
_PID_FILE: Final = CACHE / "docker.pid"
_DATA_ROOT: Final = CACHE / "docker"
_EXEC_ROOT: Final = CACHE / "docker-exec"
_LOG: Final = CACHE / "dockerd.log"
_PACKAGES: Final = ("docker.io", "jq", "iptables", "debootstrap")

# Docker 20.10 gives a privileged container every capability that the kernel knows, and runc fails where the host's
# bounding set lacks one. This runtime asks for what the host has; runc reads the request from files.
_TRIM_RUNTIME: Final = """\
#!/bin/sh
trim() {
  jq -c 'def t: with_entries(.value |= map(select(. != "CAP_SYS_RESOURCE")));
    if .process.capabilities then .process.capabilities |= t elif .capabilities then .capabilities |= t else . end' \\
    "$1" > "$1.trimmed" && cat "$1.trimmed" > "$1"
  rm -f "$1.trimmed"
}
previous=
for argument in "$@"; do
  case $previous in
    --bundle|-b) [ ! -f "$argument/config.json" ] || trim "$argument/config.json" ;;
    --process|-p) [ ! -f "$argument" ] || trim "$argument" ;;
  esac
  case $argument in
    --bundle=*) trim "${argument#--bundle=}/config.json" ;;
    --process=*) trim "${argument#--process=}" ;;
  esac
  previous=$argument
done
exec runc "$@"
"""


def ensure() -> None:
    """Make sure that `docker` reaches an engine; sets DOCKER_HOST for this process where it is our own.

    Raises RuntimeError, with the mend, where there is none and none can be started.
    """
    if _answers(_own()):
        os.environ.update(_own())
    elif not _answers({}):
        with locked("engine"):
            if not _answers(_own()):
                _start()
            os.environ.update(_own())


def is_own() -> bool:
    """Whether `ensure` ended up with an engine that this project started."""
    return os.environ.get("DOCKER_HOST") == f"unix://{SOCKET}"


def stop() -> None:
    """Stop the engine that `ensure` started, if any; its images stay in the cache."""
    _end(_PID_FILE)
    _unmount_leftovers()


def docker(*arguments: str | Path, stdin: bytes | None = None, log: Path | None = None) -> str:
    """Run a docker command and return what it prints; its output goes to `log` as well where given.

    Raises RuntimeError with the end of its output when it fails.
    """
    done = subprocess.run(
        ["docker", *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode(errors="replace")
    if log is not None:
        log.write_text(output)
    if done.returncode != 0:
        where = f" (all of it: {log})" if log is not None else ""
        raise RuntimeError(
            f"docker {' '.join(map(str, arguments[:3]))} failed{where}:\n" + "\n".join(output.splitlines()[-15:])
        )
    return output


def has_image(tag: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode == 0


def install_packages(*packages: str) -> None:
    """Install Debian packages whose commands are missing; raises RuntimeError where that is not possible."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"missing: {', '.join(packages)}; install them, or run as root on Debian or Ubuntu")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        # An update that fails for one of several sources may still know the packages; the install decides.
        if done.returncode != 0 and command[1] == "install":
            raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-10:]))


def _own() -> dict[str, str]:
    # Debian's engine has no BuildKit of use.
    return {"DOCKER_HOST": f"unix://{SOCKET}", "DOCKER_BUILDKIT": "0"}


def _answers(variables: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            ["docker", "info"], env=os.environ | variables, capture_output=True, timeout=30, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _start() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("no Docker engine answers `docker info`: start Docker, or run as root to have one started")
    if any(shutil.which(command) is None for command in ("dockerd", "docker", "jq", "iptables", "runc")):
        with step("installing Docker from Debian"):
            install_packages(*_PACKAGES)
    with step("starting a Docker engine"):
        _clear_leftovers()
        runtime: list[str | Path] = []
        if not _host_has_sys_resource():
            wrapper = CACHE / "runc-trim"
            wrapper.write_text(_TRIM_RUNTIME)
            wrapper.chmod(0o755)
            runtime = ["--add-runtime", f"trim={wrapper}", "--default-runtime", "trim"]
        with _LOG.open("wb") as log:
            folders: list[str | Path] = ["--data-root", _DATA_ROOT, "--exec-root", _EXEC_ROOT, "-p", _PID_FILE]
            process = subprocess.Popen(
                ["dockerd", "-H", f"unix://{SOCKET}", *folders, *runtime],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not _answers(_own()):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(_LOG.read_text(errors="replace").splitlines()[-5:])
                raise RuntimeError(f"dockerd did not start (its log: {_LOG}):\n{tail}")
            time.sleep(0.5)
    say(f"for a shell of your own: export DOCKER_HOST=unix://{SOCKET}")


def _clear_leftovers() -> None:
    """Remove what an engine that was killed left: none of ours answers, so its pid files are stale."""
    for pid_file in (_PID_FILE, _EXEC_ROOT / "containerd" / "containerd.pid"):
        _end(pid_file)
        pid_file.unlink(missing_ok=True)
    _unmount_leftovers()


def _unmount_leftovers() -> None:
    """Unmount what an engine of ours left mounted, so that the cache can be removed like any folder."""
    if _answers(_own()):
        return
    mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for folder in reversed(mounted):  # what is mounted on another mount goes first
        if folder.is_relative_to(_DATA_ROOT) or folder.is_relative_to(_EXEC_ROOT):
            subprocess.run(["umount", folder], capture_output=True, check=False)  # one in use still is left alone


def _end(pid_file: Path) -> None:
    """End the process named in `pid_file` and wait for it; the number may be somebody else's, who is left alone."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int(pid_file.read_text())
        if str(CACHE).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.1)


def _host_has_sys_resource() -> bool:
    """Whether CAP_SYS_RESOURCE (bit 24) is in this machine's bounding set."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    return True
