# SPDX-License-Identifier: Apache-2.0
"""Two ranks, each in a network namespace of its own, with a slow link between them. It needs root, ip and tc."""

import contextlib
import os
import subprocess
import sys

NAMES = ("caesura-rank-0", "caesura-rank-1")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = "29577"
SENT_BYTES = "/sys/class/net/wire/statistics/tx_bytes"  # within a rank's namespace


class NoNamespaces(Exception):
    """Namespaces cannot be made here, for the reason that the message says."""


def _command(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def limit(gbit):
    """Limits both directions of the link by tbf, which costs no CPU time."""
    for name in NAMES:
        _command("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "wire", "root", "tbf",
                 "rate", f"{gbit}gbit", "burst", "256kb", "latency", "100ms")


def _connect():
    for name in NAMES:
        _command("ip", "netns", "add", name)
    _command("ip", "link", "add", "wire", "netns", NAMES[0], "type", "veth", "peer", "name", "wire", "netns", NAMES[1])
    for name, address in zip(NAMES, ADDRESSES, strict=True):
        _command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "wire")
        for device in ("wire", "lo"):
            _command("ip", "-n", name, "link", "set", device, "up")


def _disconnect():
    for name in NAMES:
        subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)


@contextlib.contextmanager
def namespaces():
    """Two namespaces with a link between them, within a `with` block. Raises NoNamespaces."""
    try:
        _connect()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        _disconnect()
        why = (getattr(error, "stderr", "") or str(error)).strip()
        raise NoNamespaces(f"network namespaces cannot be made here ({why})") from None
    try:
        yield
    finally:
        _disconnect()


def run_ranks(script, arguments):
    """Runs `script` with `arguments` and --rank as both ranks, on one thread each, with torchrun's variables set. Ends
    this process where a rank fails."""
    ranks = []
    for rank in range(2):
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1", "CAESURA_NUM_THREADS": "1"}
        command = [sys.executable, script, *arguments, "--rank", str(rank)]
        ranks.append(subprocess.Popen(["ip", "netns", "exec", NAMES[rank], *command], env=environment))
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"a rank ended with {codes}")
