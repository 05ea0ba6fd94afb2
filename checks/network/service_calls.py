"""Asks the services that a launch names whether they are there; joins nothing."""

from __future__ import annotations

from typing import Any

# A service on the same network answers in milliseconds; a firewall that drops never does.
CONNECT_SECONDS = 2.0
# Mooncake's own client gives a dead master 4.3 s before it reports it (measured, 0.3.13.post1).
MASTER_SECONDS = 8.0
_ANSWER_BYTES = 4096


def resolve(host: str) -> list[str]:
    """The addresses of a name, in the resolver's order, each once."""
    import socket

    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def connect(host: str, port: int) -> dict[str, Any]:
    """Whether something listens: ``{"open": true}``, or the error's name and text."""
    import errno
    import socket

    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            return {"open": True}
    except OSError as error:
        name = "timeout" if isinstance(error, TimeoutError) else ""
        name = name or errno.errorcode.get(error.errno or 0, type(error).__name__)
        return {"open": False, "error": name, "text": error.strerror or str(error)}


def http(host: str, port: int, path: str) -> dict[str, Any]:
    """``GET path`` past any proxy: the status and the beginning of the body."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=CONNECT_SECONDS)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES).decode("utf-8", "replace")
        return {"status": answer.status, "body": body}
    except (OSError, HTTPException, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


def master(host: str, port: int) -> dict[str, Any]:
    """Ask a Mooncake master with Mooncake's own client, in a process of its own.

    The protocol ``rpc_only`` connects, checks service and version, and returns before it joins:
    the master shows no client afterwards. ``{"code": 0}`` is a master that is ready.
    """
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "print('code', MooncakeDistributedStore().setup("
        "'h:1', 'P2PHANDSHAKE', 0, 0, 'rpc_only', '', sys.argv[1]))\n"
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, address],
            capture_output=True,
            text=True,
            timeout=MASTER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"timeout": MASTER_SECONDS}
    for line in done.stdout.splitlines():
        word, _, code = line.partition(" ")
        if word == "code" and code.lstrip("-").isdigit():
            return {"code": int(code)}
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return {"error": last[:200]}
