"""Whether containers can be made here, and what makes them."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.containers.container import RUNTIME, ContainerError, Limits, Machine, machine

# Says what it was given and how it ends; the gate takes it for Mooncake's own.
MASTER = f"""#!{sys.executable}
import json, os, signal, sys, time

def end(number, frame):
    print(json.dumps({{"signal": signal.Signals(number).name}}), flush=True)
    sys.exit(40 + number)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
print(json.dumps({{
    "pid": os.getpid(),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()),
    "zombies": open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read(),
    "environment": dict(os.environ),
}}), flush=True)
if "--wait" in sys.argv:
    time.sleep(60)
sys.exit(int(os.environ.get("CODE", "0")))
"""


def why_not() -> str | None:
    """Why no container can be made here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "makes containers and sets vm.nr_hugepages: set MOONCAKE_PREFLIGHT_REAL=1 to allow"
    if os.geteuid() != 0:
        return "needs root, to make containers"
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "the probes make system calls of Linux on x86-64"
    if shutil.which(RUNTIME) is None:
        return f"needs an OCI runtime (apt-get install {RUNTIME})"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and item.get_closest_marker("containers"):
            item.add_marker(pytest.mark.skip(reason=reason))


# Not for the session: while its hugetlb hierarchy is there, every process of this machine is in it.
@pytest.fixture(scope="package")
def containers() -> Iterator[Machine]:
    # The entry of an image of this program alone.
    entry = f'#!/bin/sh\nexec {sys.executable} -m preflight.cli.main "$@"\n'
    with machine({"mooncake_master": MASTER, "mooncake-preflight": entry}) as made:
        try:
            made.run(Limits(), "true")
        except ContainerError as error:
            pytest.skip(f"this machine lets {RUNTIME} make no container: {error}")
        yield made
