"""Two machines on two rails: what is done to them, what each reports, and what packets do.

Each pair of ends is started by hand first; then one command asks both machines over ssh, with a
launch that says what is to be tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.core import runs_live
from tests.lab.pair_guest import RAILS, run_pair
from tests.lab.results import plain

# Some 90 seconds on two processors that do nothing else, and as slow as they like beside others.
LIMIT_SECONDS = 900
FIRST_PORT = 7471
PROGRAM = f"{sys.executable} -m preflight.cli.main"
NODES = ("a", "b")


class Case(NamedTuple):
    """What is done to each guest before, and undone after. pairs: as of ``pair-connect``."""

    id: str
    pairs: str
    done: Mapping[str, str]
    undone: Mapping[str, str]


CASES = (
    Case("healthy", "any", {}, {}),
    # Linux takes an address without a route to be on the link that a RoCE port is bound to, and
    # here it is: what addresses and routes leave open, packets settle.
    Case(
        "subnet",
        "same",
        {"a": "ip addr flush dev eth1; ip addr add 10.9.0.1/24 dev eth1"},
        {"a": "ip addr flush dev eth1; ip addr add 10.1.0.1/24 dev eth1"},
    ),
    # 1024 B of path MTU here, 4096 B there.
    Case("mtu", "same", {"a": "ip link set eth1 mtu 1500"}, {"a": "ip link set eth1 mtu 4500"}),
    # What leaves b on this rail arrives nowhere, as on a wrong VLAN: nothing else tells of it.
    Case(
        "astray",
        "same",
        {"b": "ip neigh replace 10.1.0.1 lladdr 52:54:00:00:00:99 dev eth1 nud permanent"},
        {},
    ),
)
# Its devices, its GID (index 1: IPv4) and its MTU are tried, and equal names alone.
LAUNCH = """\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL=rdma MOONCAKE_DEVICE=rxe0,rxe1
export MC_GID_INDEX=1 MC_MTU=512 MC_ENABLE_DEST_DEVICE_AFFINITY=1
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 1 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake
"""
TOOL = f"""\
#!/bin/sh
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={Path(__file__).parents[2]}
exec {PROGRAM} "$@"
"""
# An emulated processor takes seconds for what takes a real one milliseconds.
PATIENCE = "--timeout 150 --connect-timeout 60"


def prepare(folder: Path) -> None:
    """What ssh and its server need, made here: the guests only read it."""
    for name in ("host", "user"):
        words = ("-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        subprocess.run(["ssh-keygen", *words], check=True)
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text("".join(f"{node} {key}\n" for node in NODES))
    client = [f"IdentityFile {folder}/user", f"UserKnownHostsFile {folder}/known"]
    for node in NODES:
        client += [f"Host {node}", f" HostName {address(node, 0)}", f" HostKeyAlias {node}"]
    (folder / "ssh_config").write_text("\n".join([*client, ""]))
    server = [f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/user.pub"]
    server += ["StrictModes no", "UsePAM no", "PidFile /run/sshd.pid"]
    (folder / "sshd_config").write_text("\n".join([*server, ""]))
    (folder / "launch.sh").write_text(LAUNCH)
    (folder / "tool").write_text(TOOL)
    (folder / "tool").chmod(0o755)


def address(node: str, rail: int) -> str:
    return f"10.{rail}.0.{NODES.index(node) + 1}"


def fleet_script(node: str, folder: Path) -> list[str]:
    """One command on a, for both; what b sends on rail 1 is led astray again."""
    lines = [f"mkdir -p /run/sshd; /usr/sbin/sshd -E /run/log -f {folder}/sshd_config"]
    options = f"-F{folder}/ssh_config"
    if node == "b":
        return [*lines, CASES[-1].done["b"], "until test -e /run/over; do sleep 1; done"]
    command = f"{PROGRAM} fleet pairs --nodes a,b --ssh-options={options} {PATIENCE}"
    command += " --json"
    command += f" --carry never --remote-command {folder}/tool {folder}/launch.sh"
    wait = f"until ssh {options} b true; do sleep 1; done"
    return [
        *lines,
        f"{wait} 2>/dev/null",
        f"echo; echo '== fleet'; {command} 2>/run/error; echo; echo '== fleet ends'; echo $?",
        f"cat /run/error /run/log; ssh {options} b touch /run/over",
    ]


def script(node: str, folder: Path, cases: Sequence[Case]) -> str:
    """Each case in turn: broken, reported, tried, mended. The listener sets the pace."""
    lines = [
        "export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run",
        f"export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={Path(__file__).parents[2]}",
        "cd /; ip link set lo up",
    ]
    for rail in RAILS:
        own = f"{address(node, rail)}/24"
        lines.append(f"ip link set eth{rail} mtu 4500 up; ip addr add {own} dev eth{rail}")
        lines.append(f"rdma link add rxe{rail} type rxe netdev eth{rail}")
    for number, case in enumerate(cases):
        tried = f"--token t --seconds 90 --port {FIRST_PORT + number} --once --address 10.0.0.1"
        if node == "b":
            tried = f"--token t --seconds 90 --wait 90 --pairs {case.pairs}"
            tried += f" 10.0.0.1 {FIRST_PORT + number}"
        command = "pair-listen" if node == "a" else "pair-connect"
        lines += [
            case.done.get(node, ""),
            f"echo; echo '== report {case.id}'",
            f"MOONCAKE_PREFLIGHT_NODE={node} {PROGRAM} check --json --timeout 150 2>&1",
            f"echo; echo '== pair {case.id}'; {PROGRAM} fleet {command} {tried} 2>&1",
            case.undone.get(node, ""),
        ]
    lines += fleet_script(node, folder)
    return "\n".join([*lines, "echo", "echo '== end'", "true", ""])


def run_cases(cases: Sequence[Case], folder: Path) -> tuple[dict[str, Any], str, str]:
    """Return a row for each case; what ``fleet pairs`` answered; and how that ended."""
    prepare(folder)
    said = run_pair({node: script(node, folder, cases) for node in NODES}, folder, LIMIT_SECONDS)
    parts = {node: _parts(lines) for node, lines in said.items()}
    rows = {
        case.id: {
            "id": case.id,
            "order": plain(case),
            "reports": {node: parts[node][f"report {case.id}"].strip() for node in NODES},
            "pair": json.loads(parts["b"][f"pair {case.id}"]),
        }
        for case in cases
    }
    return rows, parts["a"]["fleet"], parts["a"]["fleet ends"]


def run_live_cases(folder: Path) -> tuple[dict[str, Any], str, str]:
    return run_cases([case for case in CASES if runs_live(case.id)], folder)


def _parts(lines: list[str]) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    here: list[str] = []
    for line in lines:
        if line.startswith("== "):
            here = parts.setdefault(line[3:], [])
        else:
            here.append(line)
    return {name: "\n".join(part) for name, part in parts.items()}
