"""Runs the probe inside the guest, under limits, and counts what it leaves registered.

Started with the path of a file of orders; writes one line of JSON per answer. Emulated, a Python
that starts takes seconds, so the command is a fork of this process, which has loaded it already.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PLACE = Path("/run/probe")
CGROUP = Path("/sys/fs/cgroup")
NICS = ("rxe0", "rxe1")
UID = 1000
# The kernel answers at once; an emulated machine beside others may take its time.
LIMIT_SECONDS = 90


def prepare() -> None:
    """Two devices, huge pages, and a folder that user 1000 may write."""
    commands = ["mount -t cgroup2 none /sys/fs/cgroup"]
    for number, nic in enumerate(NICS):
        commands += [
            f"ip link set eth{number} up",
            f"ip addr add 10.0.{number}.1/24 dev eth{number}",
            f"rdma link add {nic} type rxe netdev eth{number}",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)
    CGROUP.joinpath("cgroup.subtree_control").write_text("+rdma")
    Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").write_text("40")
    PLACE.mkdir()
    PLACE.chmod(0o1777)


def counts() -> dict[str, int]:
    """Memory regions, open contexts and protection domains of both devices together."""
    from checks.rdma.calls import kernel

    devices = kernel()["devices"]
    return {
        kind: sum(devices[nic]["resources"].get(kind, 0) for nic in NICS)
        for kind in ("mr", "ctx", "pd")
    }


def start(order: dict[str, Any], output: Path) -> int:
    """The command under its limits, as a process of its own; its id."""
    cgroup = CGROUP / "probe" / "inner"
    cgroup.mkdir(parents=True, exist_ok=True)
    CGROUP.joinpath("probe/cgroup.subtree_control").write_text("+rdma")
    for folder in (cgroup.parent, cgroup):
        for nic in NICS:
            (folder / "rdma.max").write_text(f"{nic} hca_handle=max hca_object=max")
    for folder, line in order.get("cgroup", ()):
        (CGROUP / "probe" / folder / "rdma.max").write_text(line)
    process = os.fork()
    if process:
        return process
    code = 71
    try:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        with output.open("wb") as file, Path(f"{output}.err").open("wb") as errors:
            os.dup2(file.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        if order.get("memlock") is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (order["memlock"], order["memlock"]))
        if order.get("user"):
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        os.environ["HOME"] = str(PLACE / ("user" if order.get("user") else "root"))
        from preflight.base.command_frame import run_command
        from preflight.cli.measure import measure

        words = ["--only", "registration", "--spend", "256mb", *order["words"]]
        code = run_command(measure, "measure", words, lambda code, _: code)
        sys.stdout.flush()
    finally:
        os._exit(code)


def wait(process: int) -> int:
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 124


def child_of(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0])


def interrupt(process: int, how: str) -> dict[str, Any]:
    """In the middle of it, once regions are held; what was held then."""
    until = time.monotonic() + LIMIT_SECONDS
    while counts()["mr"] < 8 and time.monotonic() < until:
        time.sleep(0.02)
    held = counts()
    target = child_of(process) if how == "crash" else process
    os.kill(target, signal.SIGINT if how == "interrupt" else signal.SIGKILL)
    return held


def run(order: dict[str, Any]) -> dict[str, Any]:
    output = PLACE / order["id"]
    before = counts()
    process = start(order, output)
    held = interrupt(process, order["how"]) if "how" in order else None
    code = wait(process)
    until = time.monotonic() + LIMIT_SECONDS
    while counts() != before and time.monotonic() < until:
        time.sleep(0.02)  # a process that outlived its parent is on its way out
    text = output.read_text(errors="replace")
    answer = None
    with contextlib.suppress(ValueError):
        (part,) = json.loads(text)["answer"]["parts"]
        answer = part["ceiling"]
    return {
        "id": order["id"],
        "code": code,
        "answer": answer,
        "said": "" if answer else text[-1500:],
        "errors": Path(f"{output}.err").read_text(errors="replace")[-1500:],
        "before": before,
        "held": held,
        "after": counts(),
    }


class Neighbour:
    """A process that has a region registered, for as long as the context lasts."""

    def __enter__(self) -> Neighbour:
        reading, writing = os.pipe()
        self._process = os.fork()
        if not self._process:
            import ctypes

            from preflight.benchmark.probes.measure import OpenDevice

            device = OpenDevice(NICS[0])
            room = ctypes.create_string_buffer(8192)
            device.register(ctypes.addressof(room), 8192)
            os.write(writing, b"x")
            signal.pause()
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def measured_here() -> list[Any]:
    """What the checks read of earlier results, as root."""
    from checks.framework.root import Root
    from checks.rdma.facts import read_rdma

    os.environ["HOME"] = str(PLACE / "root")
    return [list(one) for one in read_rdma(Root(), None).measured]


def main() -> None:
    import_module("preflight.benchmark.probes.registration")  # once for all the forks
    prepare()
    for order in json.loads(Path(sys.argv[1]).read_text()):
        began = time.monotonic()
        with Neighbour() if order.get("neighbour") else contextlib.nullcontext():
            answer = run(order)
        answer["seconds"] = round(time.monotonic() - began, 2)
        print(json.dumps(answer), flush=True)
    print(json.dumps({"id": "measured", "measured": measured_here()}), flush=True)


if __name__ == "__main__":
    main()
