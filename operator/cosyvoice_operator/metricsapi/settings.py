"""Command line of the metrics API."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Where this process stands in the cluster, and how it scrapes. Times in seconds."""

    namespace: str
    service: str
    service_port: int
    secret: str
    cluster_role: str
    deployment: str
    own_address: str
    keda_secret: str
    kubeconfig: str | None
    host: str
    port: int
    health_port: int
    keda_port: int
    scrape_interval: float
    scrape_timeout: float
    scrape_concurrency: int
    log_level: str

    @property
    def max_age(self) -> float:
        """A reading is fresh for two intervals and one answer's time: one lost scrape does not make a worker silent."""
        return 2 * self.scrape_interval + self.scrape_timeout

    @property
    def dns_names(self) -> list[str]:
        """kube-apiserver verifies the first; the second is what people type."""
        name = f"{self.service}.{self.namespace}.svc"
        return [name, f"{name}.cluster.local"]

    @property
    def own_url(self) -> str:
        """Where this process finds itself behind its Service."""
        return f"https://{self.own_address or f'{self.dns_names[0]}:{self.service_port}'}"


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong one ends the process with a usage message (exit code 2)."""
    parser = argparse.ArgumentParser("python -m cosyvoice_operator.metricsapi", description=__doc__)
    where = parser.add_argument_group("place in the cluster")
    where.add_argument("--namespace", required=True, help="namespace of the Service, Secret and Deployment below")
    where.add_argument("--service", required=True, help="Service in front of this process")
    where.add_argument("--service-port", type=_port, default=443, help="port of that Service")
    where.add_argument("--secret", required=True, help="Secret in which replicas share their serving certificate")
    where.add_argument("--cluster-role", required=True, help="ClusterRole that shall own the APIServices")
    where.add_argument(
        "--deployment", default="", help="own Deployment: when it is deleted, the APIServices are withdrawn at once"
    )
    where.add_argument(
        "--own-address", default="", help="host:port by which that Service is reached; default: its name and port"
    )
    where.add_argument(
        "--keda-secret",
        default="",
        metavar="NAMESPACE/NAME",
        help="Secret with which KEDA proves itself; empty: no KEDA",
    )
    where.add_argument("--kubeconfig", help="outside a cluster; default: service account, $KUBECONFIG, ~/.kube/config")
    listen = parser.add_argument_group("ports")
    listen.add_argument("--host", default="", help="address to listen on; default: all")
    listen.add_argument("--port", type=_port, default=10250, help="HTTPS, for kube-apiserver")
    listen.add_argument("--health-port", type=_port, default=8080, help="HTTP: /healthz, /readyz, /metrics")
    listen.add_argument("--keda-port", type=_port, default=8443, help="HTTPS, for KEDA; only with --keda-secret")
    scrape = parser.add_argument_group("scraping")
    scrape.add_argument("--scrape-interval", type=_positive, default=5.0, metavar="S")
    scrape.add_argument("--scrape-timeout", type=_positive, default=2.0, metavar="S")
    scrape.add_argument("--scrape-concurrency", type=int, default=64, metavar="N", help="workers asked at once")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    settings = Settings(**vars(parser.parse_args(arguments)))
    if settings.scrape_timeout > settings.scrape_interval:
        parser.error(
            f"--scrape-timeout {settings.scrape_timeout:g} is longer than --scrape-interval "
            f"{settings.scrape_interval:g}: make it shorter"
        )
    if settings.keda_secret.count("/") != (1 if settings.keda_secret else 0):
        parser.error(f"--keda-secret {settings.keda_secret}: give NAMESPACE/NAME")
    if settings.scrape_concurrency < 1:
        parser.error(f"--scrape-concurrency {settings.scrape_concurrency}: at least 1")
    return settings


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is no port: 1 to 65535")
    return port


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return value
