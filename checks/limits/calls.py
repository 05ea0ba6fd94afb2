"""What no single file tells about limits: who we are, and which processes hold pinned memory."""

from __future__ import annotations

import os
from typing import Any

# Daemons that start containers or jobs, as /proc/PID/status names them (15 characters at most).
DAEMONS = ("containerd", "dockerd", "crio", "cri-dockerd", "slurmd", "kubelet", "podman")
# Reading one status takes about 30 us: the newest processes are where servers are.
MOST_PROCESSES = 3000


def identity() -> dict[str, Any]:
    """Read the user namespace, who called sudo, whether this is a Slurm job, and who is root."""
    sudo_uid = os.environ.get("SUDO_UID", "")
    return {
        "user_namespace": os.readlink("/proc/self/ns/user"),
        "sudo_uid": int(sudo_uid) if sudo_uid.isdecimal() else None,
        "slurm_job": "SLURM_JOB_ID" in os.environ,
        "root_names": _root_names(),
    }


def _root_names() -> list[str]:
    """Return the users of number 0 (passwd(5)).

    Other sources of users give none (sssd.conf(5), min_id).
    """
    rows = (line.split(":") for line in _content("/etc/passwd", 1 << 20).decode().splitlines())
    return [row[0] for row in rows if len(row) == 7 and row[2] == "0"]


def processes() -> dict[str, Any]:
    """Read processes with pinned memory, the daemons above with limits, this user's threads."""
    pids = sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()), reverse=True)
    pinned: list[dict[str, Any]] = []
    daemons: list[dict[str, Any]] = []
    own = f"{os.getuid()}".encode()
    user_threads = 0
    # Daemons start early: the oldest are looked at too.
    looked_at = (
        pids if len(pids) <= MOST_PROCESSES else pids[: MOST_PROCESSES - 1000] + pids[-1000:]
    )
    for pid in looked_at:
        content = _content(f"/proc/{pid}/status")
        name = content[6 : content.find(b"\n")].decode(errors="replace")
        start = content.find(b"\nVmPin:")
        if start >= 0:
            words = content[start + 7 : start + 40].split()
            if words and words[0].isdigit() and words[0] != b"0":
                pinned.append({"pid": pid, "name": name, "pinned_kib": int(words[0])})
        if _row(content, b"\nUid:") == own:
            user_threads += int(_row(content, b"\nThreads:") or b"0")
        if name in DAEMONS:
            daemons.append({"name": name, **_limits(pid)})
    return {
        "pinned": pinned,
        "daemons": daemons,
        "user_threads": user_threads,
        "complete": len(looked_at) == len(pids),
    }


def _row(content: bytes, name: bytes) -> bytes:
    """Return the first word of a row of /proc/PID/status; of Uid, the user the kernel counts."""
    start = content.find(name)
    words = content[start + len(name) : start + 60].split() if start >= 0 else []
    return words[0] if words else b""


def _content(path: str, most_bytes: int = 1 << 14) -> bytes:
    """Read a file; returns nothing for a process that is gone or hidden."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _limits(pid: int) -> dict[str, list[str]]:
    """Read the soft and hard limits as ``/proc/PID/limits`` writes them."""
    limits = {}
    for line in _content(f"/proc/{pid}/limits").decode(errors="replace").splitlines():
        for key, title in (("memlock", "Max locked memory"), ("nofile", "Max open files")):
            if line.startswith(title):
                limits[key] = line[len(title) :].split()[:2]
    return limits
