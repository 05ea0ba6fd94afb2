"""Asks the real Mooncake for its topology on hosts that are folders, in a mount namespace.

Started with the path of a file of orders, as root, by ``unshare --mount``; writes one line of JSON
per host. Each host's own ``/sys`` is mounted over this machine's. It calls what the engine calls
first, ``Topology::discover``: the engine itself would then open the devices, which are not there.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mooncake.engine as engine  # type: ignore[import-not-found]

DISCOVER = (
    "_ZN8mooncake8Topology8discoverERKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcE"
    "SaIcEEESaIS7_EE"
)
# More than a Topology takes.
OBJECT_BYTES = 4096


class String(ctypes.Structure):
    """libstdc++'s std::string."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("own", ctypes.c_char * 16))


class Vector(ctypes.Structure):
    """libstdc++'s std::vector<std::string>."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p))


def topology(library: ctypes.CDLL, devices: list[str]) -> str:
    """``Topology().discover(devices)``, written as JSON."""
    kept = [ctypes.create_string_buffer(name.encode()) for name in devices]
    names = (String * len(devices))()
    for name, text in zip(names, kept, strict=True):
        name.data, name.length = ctypes.addressof(text), len(text) - 1
    begin = ctypes.addressof(names)
    vector = Vector(begin, begin + ctypes.sizeof(names), begin + ctypes.sizeof(names))
    itself = ctypes.create_string_buffer(OBJECT_BYTES)
    written = String()
    library["_ZN8mooncake8TopologyC1Ev"](itself)
    # 0.3.14 takes a flag more.
    discover = getattr(library, DISCOVER, None) or getattr(library, f"{DISCOVER}b")
    discover(itself, ctypes.byref(vector), False)
    library["_ZNK8mooncake8Topology8toStringB5cxx11Ev"](ctypes.byref(written), itself)
    return ctypes.string_at(written.data, written.length).decode()


def make_devices() -> None:
    """A ``/dev`` of this namespace's own, in which uverbs nodes can be made."""
    subprocess.run("mount -t tmpfs none /dev".split(), check=True)
    for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(1, minor))
    os.makedirs("/dev/infiniband")
    for number in range(64):
        os.mknod(f"/dev/infiniband/uverbs{number}", 0o20666, os.makedev(1, 3))


def answer(library: ctypes.CDLL, order: dict[str, Any]) -> Any:
    subprocess.run(["mount", "--bind", f"{order['root']}/sys", "/sys"], check=True)
    os.environ["STAND_IN"] = str(Path(order["root"]) / "stand-in")
    os.environ.update(order["variables"])
    try:
        return json.loads(topology(library, order["devices"]))
    finally:
        for name in order["variables"]:
            del os.environ[name]
        subprocess.run(["umount", "/sys"], check=True)


def main(path: str) -> None:
    make_devices()
    library = ctypes.CDLL(engine.__file__)
    for order in json.loads(Path(path).read_text()):
        print(json.dumps({"id": order["id"], "answer": answer(library, order)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
