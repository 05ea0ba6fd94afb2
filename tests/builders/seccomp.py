"""A Python under a real seccomp filter, as in a container."""

import subprocess
import sys

from tests.paths import ROOT

# linux/seccomp.h: SECCOMP_RET_ERRNO, with the errno in its low bits, and SECCOMP_RET_KILL_PROCESS.
REFUSE, KILL = 0x00050000, 0x80000000
PROGRAM = """
import ctypes, struct
rows = [(0x20, 0, 0, 0)]
calls = {calls!r}
for left, number in zip(range(len(calls), 0, -1), calls):
    rows.append((0x15, left, 0, number))
rows += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, {action})]
code = b"".join(struct.pack("HBBI", *row) for row in rows)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
filtered = Program(len(rows), ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(filtered), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
from checks.framework.root import Root
{program}
"""


def filtered(program: str, action: int, *calls: int) -> subprocess.CompletedProcess[str]:
    """Run ``program``, which has Root, where the kernel answers system ``calls`` by ``action``."""
    text = PROGRAM.format(program=program, action=action, calls=calls)
    words = [sys.executable, "-c", text]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
