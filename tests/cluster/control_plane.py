"""A Kubernetes control plane as processes: real etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

There is no kubelet, so pods never run, but all that the control plane does is real: schema and CEL validation,
server-side apply, garbage collection, Deployments, the HPA, API aggregation, RBAC. A ready one takes about four seconds
and 420 MB.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import random
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster.binaries import BIN, CONTROL_PLANE

__all__ = ["CONTROL_PLANE", "ControlPlane", "control_plane"]

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""

# A child of ours must not outlive pytest, however pytest ends. A shell waits for the end of its input, which comes when
# the Popen object's pipe closes, and then kills the child; it also leaves when the child does.
_LEASH = '"$@" </dev/null & child=$!; (cat >/dev/null; kill -9 $child 2>/dev/null) <&3 & wait $child'


class ControlPlane:
    """One running control plane; made by `control_plane()`.

    kubeconfig: path of the administrator's kubeconfig.
    kubectl: path of a kubectl of the same version.
    audit_log: JSON lines, one per finished request, at level Metadata.
    front_proxy_ca: the CA whose `front-proxy-client` certificate kube-apiserver shows to aggregated API servers.
    """

    def __init__(self, root: Path, hpa_sync_seconds: float = 2) -> None:
        self.root = root
        self._hpa_sync_seconds = hpa_sync_seconds
        self.kubectl = BIN / "kubectl"
        self.audit_log = root / "audit.log"
        self._etcd_port, self._etcd_peer_port, self._port = _free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ca = _Authority(root / "ca", "kubernetes-ca")
        self._front_proxy = _Authority(root / "front-proxy-ca", "front-proxy-ca")
        self.ca = self._ca.certificate_file
        self.front_proxy_ca = self._front_proxy.certificate_file
        self._serving = self._ca.issue("kube-apiserver", server=True)
        self._aggregator = self._front_proxy.issue("front-proxy-client")
        self._service_accounts = self._ca.issue("service-accounts")
        self.kubeconfig = self.kubeconfig_for("admin", ["system:masters"])

    def start(self) -> None:
        """Start every process and return once the API server is ready and the controllers work."""
        (self.root / "audit-policy.yaml").write_text(AUDIT_POLICY)
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        self._spawn(
            "etcd",
            "--unsafe-no-fsync",
            f"--data-dir={self.root / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        )
        self._start_apiserver()
        manager = self.kubeconfig_for("system:kube-controller-manager")
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={manager}",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._service_accounts.key}",
            f"--root-ca-file={self.ca}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--horizontal-pod-autoscaler-sync-period={self._hpa_sync_seconds:g}s",
        )
        scheduler = self.kubeconfig_for("system:kube-scheduler")
        self._spawn("kube-scheduler", f"--kubeconfig={scheduler}", "--leader-elect=false", "--secure-port=0")
        # The service account is the controller manager's first work; pods are refused until it is there.
        self._wait_for("/api/v1/namespaces/default/serviceaccounts/default", "kube-controller-manager")

    def stop(self) -> None:
        """Kill every process; never fails."""
        for name in list(self._processes):
            self._kill(name)

    def restart_apiserver(self, *, down_seconds: float = 0) -> None:
        """Kill kube-apiserver, leave it away for `down_seconds`, start it again and wait until it is ready."""
        self.stop_apiserver()
        time.sleep(down_seconds)
        self._start_apiserver()

    def stop_apiserver(self) -> None:
        self._kill("kube-apiserver")

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig that authenticates as `user` in `groups` (client certificate); RBAC decides the rest."""
        path = self.root / f"kubeconfig-{user.replace(':', '-')}.yaml"
        pair = self._ca.issue(user, organizations=groups)
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}
                    ],
                    "users": [
                        {
                            "name": user,
                            "user": {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
                        }
                    ],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            )
        )
        return path

    def run_kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return what it prints.

        Raises AssertionError with kubectl's own message when it fails; with `check=False` its message is returned too.
        """
        done = subprocess.run(
            [self.kubectl, "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout if check else done.stdout + done.stderr

    def audit_events(self, *, user: str | None = None) -> list[dict[str, Any]]:
        """Every finished request so far, oldest first, of one user where `user` is given.

        Take the length before and after an action to count the requests in between. A watch is one request, written
        when it starts (stage ResponseStarted) and when it ends.
        """
        with self.audit_log.open() as log:
            events = [json.loads(line) for line in log if line.endswith("\n")]
        return [event for event in events if user is None or event["user"]["username"] == user]

    def log_of(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def _start_apiserver(self) -> None:
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--endpoint-reconciler-type=none",  # endpoints refuse loopback addresses
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--cert-dir={self.root}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self.ca}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._service_accounts.key}",
            f"--service-account-signing-key-file={self._service_accounts.key}",
            f"--requestheader-client-ca-file={self.front_proxy_ca}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self._aggregator.certificate}",
            f"--proxy-client-key-file={self._aggregator.key}",
            f"--audit-log-path={self.audit_log}",
            f"--audit-policy-file={self.root / 'audit-policy.yaml'}",
        )
        self._wait_for("/readyz", "kube-apiserver")

    def _spawn(self, name: str, *arguments: str) -> None:
        with self.log_of(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", f"exec 3<&0; {_LEASH}", "sh", BIN / name, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)

    def _wait_for(self, path: str, name: str, timeout: float = 120) -> None:
        """Wait until the API server answers `path` with 200, while process `name` and etcd are there."""
        context = ssl.create_default_context(cafile=str(self.ca))
        admin = self._ca.directory / "admin"
        context.load_cert_chain(admin.with_suffix(".crt"), admin.with_suffix(".key"))
        deadline = time.monotonic() + timeout
        while True:
            for process in ("etcd", "kube-apiserver", name):
                if self._processes[process].poll() is not None:
                    raise RuntimeError(f"{process} ended while it started: {_tail(self.log_of(process))}")
            with (
                contextlib.suppress(OSError),  # refused, reset, or an HTTP status other than 200
                urllib.request.urlopen(self.url + path, context=context, timeout=5),
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} does not answer after {timeout:.0f} s: {_tail(self.log_of(name))}")
            time.sleep(0.1)


@contextlib.contextmanager
def control_plane(root: Path, *, hpa_sync_seconds: float = 2) -> Iterator[ControlPlane]:
    """Run a control plane whose files are all under `root`; whatever happens, no process stays.

    hpa_sync_seconds: how often the HPA controller looks; Kubernetes' own default is 15.
    """
    for name in CONTROL_PLANE:
        if not (BIN / name).exists():
            raise FileNotFoundError(f"{BIN / name} is missing: build it with `python3 -m tests.cluster binaries`")
    plane = ControlPlane(root, hpa_sync_seconds)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


_CA_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class _Pair:
    """A certificate and its key as PEM files."""

    def __init__(self, stem: Path) -> None:
        self.certificate = stem.with_suffix(".crt")
        self.key = stem.with_suffix(".key")


class _Authority:
    """A certificate authority whose files lie in `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir()
        self.directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        certificate = (
            _certificate(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            # Python 3.13 takes no CA that does not say what its key is for.
            .add_extension(_CA_USAGE, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate_file = directory / "ca.crt"
        self.certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, organizations: Sequence[str] = (), server: bool = False) -> _Pair:
        """Sign a client certificate for user `name` in `organizations` (its groups), or a server's for loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
            + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _certificate(subject, self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier), critical=False
            )
        )
        if server:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            names += [x509.DNSName(f"kubernetes.default{tail}") for tail in ("", ".svc", ".svc.cluster.local")]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = _Pair(self.directory / name.replace(":", "-"))
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        return pair


def _certificate(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _free_ports(count: int) -> list[int]:
    """Draw loopback ports below the range of clients' ports, so that no connection of a client takes one first."""
    draw = random.Random(os.urandom(8))
    ports: list[int] = []
    while len(ports) < count:
        port = draw.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
