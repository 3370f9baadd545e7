"""Makes a cluster, or parts of what one needs: `python3 -m tests.cluster COMMAND`.

binaries [NAME...]  build programs from their Go modules; by default those of the control-plane tests
prepare             everything that a kind cluster needs, without creating one
up                  a kind cluster; prints the exports that a shell needs
down                delete the cluster
stop                stop the Docker engine, if this project started it
"""

from __future__ import annotations

import sys

from tests.cluster import binaries, engine, kind
from tests.cluster.clock import say


def main(arguments: list[str]) -> int:
    match arguments:
        case ["binaries", *names]:
            binaries.build(names or binaries.CONTROL_PLANE)
        case ["prepare"]:
            kind.prepare()
        case ["up"]:
            cluster = kind.up()
            say(f"export KUBECONFIG={cluster.kubeconfig}")
            if engine.is_own():
                say(f"export DOCKER_HOST=unix://{engine.SOCKET}")
        case ["down"]:
            kind.down()
        case ["stop"]:
            engine.stop()
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:
        sys.exit(f"error: {error}")
