"""Two guests on one virtual link of two rails, each with a soft-RoCE device on each rail.

The link is made of datagram sockets in a folder: a frame that leaves one guest's interface arrives
at the other's, and nowhere else.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.guest import CPU, FINISHED, GuestError, Kernel, kernel

MIB = 1024
RAILS = (0, 1)


def run_pair(
    scripts: Mapping[str, str], folder: Path, limit_seconds: float
) -> dict[str, list[str]]:
    """Boot a guest for each of the two ``scripts`` at once; the lines that each wrote, by its name.

    Raises GuestError if one fails or ``limit_seconds`` pass; the machines are gone in every case.
    """
    built = kernel()
    names = tuple(scripts)
    machines: dict[str, subprocess.Popen[bytes]] = {}
    deadline = time.monotonic() + limit_seconds
    try:
        for name, script in scripts.items():
            (folder / f"{name}.sh").write_text(script)
            machines[name] = subprocess.Popen(
                _machine(built, folder, name, names),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{name}.machine").open("wb"),
            )
        for machine in machines.values():
            machine.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass  # what they said tells
    finally:
        for machine in machines.values():
            machine.kill()
            machine.wait()
    return {name: _said(folder, name) for name in names}


def _said(folder: Path, name: str) -> list[str]:
    answers = folder / f"{name}.answers"
    said = answers.read_text(errors="replace").splitlines() if answers.exists() else []
    if f"{FINISHED}0" not in said:
        logs = [
            (folder / f"{name}.{log}").read_text(errors="replace")[-1500:]
            for log in ("machine", "console")
            if (folder / f"{name}.{log}").exists()
        ]
        raise GuestError("\n".join([f"{name} did not finish", *logs, *said[-30:]]))
    return said[: said.index(f"{FINISHED}0")]


def _machine(built: Kernel, folder: Path, name: str, names: Sequence[str]) -> list[str]:
    other = next(one for one in names if one != name)
    command = ["setpriv", "--pdeathsig", "KILL"]  # it never outlives the tests
    command += ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", CPU]
    command += ["-smp", "1", "-m", str(MIB), "-no-reboot", "-display", "none"]
    command += ["-monitor", "none", "-nodefaults"]
    for log in ("console", "answers"):
        command += ["-serial", f"file:{folder / f'{name}.{log}'}"]
    command += ["-kernel", str(built.image), "-initrd", str(built.initrd)]
    arguments = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check rdinit=/init"
    command += ["-append", f"{arguments} program={folder / f'{name}.sh'}"]
    for rail in RAILS:
        ends = [
            f"{end}.type=unix,{end}.path={folder / f'{who}{rail}'}"
            for end, who in (("local", name), ("remote", other))
        ]
        command += ["-netdev", f"dgram,id=net{rail},{','.join(ends)}"]
        mac = f"52:54:00:00:0{names.index(name)}:0{rail}"
        nic = f"virtio-net-pci,netdev=net{rail},mac={mac},host_mtu=9000,romfile="
        command += ["-device", nic]
    share = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
    return [*command, "-fsdev", share, "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
