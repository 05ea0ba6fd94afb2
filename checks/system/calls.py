"""What no file tells of the running kernel, and what is tried on it."""

from __future__ import annotations

import os
from typing import Any

from checks.base.root import in_child

# The same on every architecture (include/uapi/asm-generic/unistd.h), alpha apart.
IO_URING_SETUP = 425
# struct io_uring_params, include/uapi/linux/io_uring.h.
PARAMS_BYTES = 120
TRY_SECONDS = 2.0


def machine() -> dict[str, Any]:
    """Return architecture, base page size, namespaces, and the environment on containers."""
    return {
        "architecture": os.uname().machine,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "container": os.environ.get("container", ""),  # noqa: SIM112 - systemd and Podman write it so
        "libc": _libc(),
    }


def _libc() -> str:
    """Return the C library's name and version, as ``glibc 2.36``; "" for one that does not say."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def cgroup_namespace() -> str:
    """Return the namespace of the paths in /proc/self/cgroup, as ``cgroup:[4026531835]``."""
    return os.readlink("/proc/self/ns/cgroup")


def io_uring() -> int:
    """Return the errno of making a ring with one entry, 0 if it works.

    Tried in a child: a seccomp profile may kill whoever tries, and a ring counts against memlock.
    """
    import ctypes

    # Looked up before the fork: no lock of the loader or of ctypes is taken in the child.
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(PARAMS_BYTES)

    def attempt() -> int:
        return 0 if libc.syscall(IO_URING_SETUP, 1, params) >= 0 else ctypes.get_errno()

    return int(in_child(attempt, TRY_SECONDS))
