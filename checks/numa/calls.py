"""Whether this process may set memory policies: tried in a child, which nothing outlives."""

from __future__ import annotations

from checks.base.root import in_child

# System call numbers of set_mempolicy, get_mempolicy and mbind, by machine (asm/unistd.h).
SYSTEM_CALLS = {"x86_64": (238, 239, 237), "aarch64": (237, 236, 235)}
MPOL_PREFERRED = 1  # linux/mempolicy.h; with an empty node mask it asks for local memory
# The child makes three system calls; one that hangs is no answer.
LIMIT_SECONDS = 5.0


def memory_policy() -> dict[str, int]:
    """Return the errno of each call, 0 where it is permitted: get_mempolicy, set_mempolicy, mbind.

    Each is made with the preferred policy and no node, which any cpuset accepts: what refuses it is
    a seccomp filter, or a kernel without NUMA (ENOSYS). Raises OSError if the child is killed.
    """
    import ctypes
    import mmap  # not in the child: another thread may hold the lock of its import for ever
    import os

    machine = os.uname().machine
    if machine not in SYSTEM_CALLS:
        raise OSError(f"the system call numbers of {machine} are not known here")
    set_mempolicy, get_mempolicy, mbind = SYSTEM_CALLS[machine]
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.mmap.restype = ctypes.c_void_p

    def ask(number: int, *arguments: int | None) -> int:
        ctypes.set_errno(0)
        wide = [None if value is None else ctypes.c_ulong(value) for value in arguments]
        answer = library.syscall(ctypes.c_long(number), *wide)
        return ctypes.get_errno() if answer == -1 else 0

    def attempt() -> dict[str, int]:
        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return {
            "get_mempolicy": ask(get_mempolicy, None, None, 0, None, 0),
            "set_mempolicy": ask(set_mempolicy, MPOL_PREFERRED, None, 0),
            "mbind": ask(mbind, address, mmap.PAGESIZE, MPOL_PREFERRED, None, 0, 0),
        }

    return dict(in_child(attempt, LIMIT_SECONDS))
