"""`cosyvoice-operator run | crd | render | explain`. The metrics API: `python -m cosyvoice_operator.metricsapi`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from pathlib import Path

import yaml

from cosyvoice_operator.api.crd import crd_yaml
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.explain import explain
from cosyvoice_operator.render import render


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cosyvoice-operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator against the cluster of the pod or of the kubeconfig")
    run.add_argument("--own-namespace", default="default", help="where the operator keeps its Lease")
    run.add_argument("--identity", default=socket.gethostname(), help="unique among the replicas")
    run.add_argument("--port", type=int, default=8080, help="of /healthz, /readyz and /metrics")
    run.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    commands.add_parser("crd", help="print the CustomResourceDefinition")
    show = commands.add_parser("render", help="print the objects that the operator would make of a manifest")
    words = commands.add_parser("explain", help="say in words how each figure of a manifest came about")
    for command in (show, words):
        command.add_argument("-f", "--filename", required=True, help="manifest, or - for standard input")
    for command in (run, show, words):
        command.add_argument("--settings", type=Path, help="the file that the chart writes; built-in defaults without")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "crd":
            print(crd_yaml(), end="")
            return 0
        settings = Settings.load(chosen.settings)
        if chosen.command in ("render", "explain"):
            text = sys.stdin.read() if chosen.filename == "-" else Path(chosen.filename).read_text(encoding="utf-8")
            show_it = render if chosen.command == "render" else explain
            print(show_it(yaml.safe_load_all(text), settings), end="")
            return 0
        logging.basicConfig(level=chosen.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for every event of every object
        from cosyvoice_operator.runtime.operator import run as run_operator

        asyncio.run(run_operator(settings, chosen.own_namespace, chosen.identity, chosen.port))
        return 0
    except (SpecError, OSError, yaml.YAMLError) as error:
        print(f"cosyvoice-operator: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
