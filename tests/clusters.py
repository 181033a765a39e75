"""A Ray cluster of separate processes: a head with a client port, and one more node.

``python -m tests.clusters COMMAND...`` runs a command beside one, as ``.ci/run`` does; tests that
find none in the environment start their own.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ADDRESS, CLIENT = "NBRL_TEST_RAY_ADDRESS", "NBRL_TEST_RAY_CLIENT"
CPUS = 4
"""Logical ones of each node; they may be more than the cores."""
START_SECONDS = 120.0
END_SECONDS = 10.0


@dataclass(frozen=True)
class Cluster:
    """Where it is: ``host:port`` of the head, and ``ray://host:port`` for clients."""

    address: str
    client: str


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """That of the environment, or one that lives as long as the block."""
    if ADDRESS in os.environ:
        yield Cluster(os.environ[ADDRESS], os.environ[CLIENT])
        return
    with started() as found:
        yield found


@contextlib.contextmanager
def started() -> Iterator[Cluster]:
    """A new cluster, whose processes are ended with the block; it writes to a folder of its own."""
    head, client = _free_port(), _free_port()
    address = f"127.0.0.1:{head}"
    nodes: list[subprocess.Popen] = []
    # Short: sockets lie in it, and their paths have an end.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            nodes.append(
                _node(
                    folder,
                    "--head",
                    f"--port={head}",
                    f"--temp-dir={folder}/t",
                    f"--ray-client-server-port={client}",
                    "--include-dashboard=false",
                )
            )
            _wait_for(head, nodes[0], folder)
            _wait_for(client, nodes[0], folder)
            nodes.append(_node(folder, f"--address={address}"))
            yield Cluster(address, f"ray://127.0.0.1:{client}")
        finally:
            for node in reversed(nodes):
                _end(node)


def _node(folder: str, *options: str) -> subprocess.Popen:
    """The processes of one node, in a session of their own, so that they can be ended together."""
    common = (f"--num-cpus={CPUS}", "--object-store-memory=800000000", "--disable-usage-stats")
    ray = str(Path(sys.executable).with_name("ray"))
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # No address of another cluster, and no home that others write to.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"HOME": folder, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with Path(folder, "nodes.log").open("ab") as log:
        return subprocess.Popen(
            [ray, "start", "--block", *common, *options],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for(port: int, node: subprocess.Popen, folder: str) -> None:
    """Until something listens on the port."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and node.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    said = Path(folder, "nodes.log").read_text(encoding="utf-8", errors="replace")
    raise RuntimeError(f"Ray did not listen on port {port}:\n{said[-3000:]}")


def _end(node: subprocess.Popen) -> None:
    """Ask the node to end its processes, and end what is left of them."""
    node.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def _free_port() -> int:
    """A port outside of those that Ray's workers take (10002 to 19999)."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port


def main(command: list[str]) -> int:
    """Run the command beside a new cluster; its exit status."""
    with started() as found:
        environment = os.environ | {ADDRESS: found.address, CLIENT: found.client}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
