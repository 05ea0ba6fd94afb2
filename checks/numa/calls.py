"""Whether this process may set memory policies: tried in a child, which nothing outlives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def in_child(attempt: Callable[[], Any], limit_seconds: float) -> Any:
    """Return what ``attempt`` returns (plain data) in a forked child, killed after
    ``limit_seconds``.

    Raises OSError with the reason when the child gives none: it was killed, failed, or took longer.
    """
    import json
    import os
    import select
    import signal

    receiver, sender = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    # Safe beside the other readers' threads: the child takes none of their locks, leaves by _exit.
    child = os.fork()
    if child == 0:
        try:
            # Where it hangs and its parent is gone, nobody waits for the end of its streams.
            for number in {0, 1, 2} - {receiver, sender}:
                os.dup2(null, number)
            os.write(sender, json.dumps(attempt()).encode())
        except BaseException as error:
            os.write(sender, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(sender)
    os.close(null)
    try:
        ready = select.select([receiver], [], [], limit_seconds)[0]
        answer = os.read(receiver, 1 << 16) if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(receiver)
        _, status = os.waitpid(child, 0)
    if not ready:
        raise OSError(f"the attempt in a child took over {limit_seconds:g} s")
    if not answer:
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "no signal"
        raise OSError(f"the child that tried it was killed ({name})")
    result = json.loads(answer)
    if isinstance(result, str):
        raise OSError(result)
    return result
