"""Two machines on two rails: what their reports foretell, and what packets do, rail by rail.

Each pair of ends is started by hand first; then one command asks both machines over ssh, with a
launch that says what is to be tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from preflight.fleet.rails.answer import RailAnswer, rail_answer
from preflight.fleet.reports.reading import Reading
from preflight.fleet.reports.records import NodeRow
from preflight.fleet.reports.sources import Text
from tests.lab.pair_guest import RAILS, run_pair

pytestmark = pytest.mark.lab

# Some 90 seconds on two processors that do nothing else.
LIMIT_SECONDS = 300
FIRST_PORT = 7471
PAIRS_SCHEMA = json.loads(
    (Path(__file__).parents[2] / "preflight/schemas/pairs-v1.schema.json").read_text()
)
PROGRAM = f"{sys.executable} -m preflight.cli.main"
NODES = ("a", "b")


class Case(NamedTuple):
    """What is done to each guest before, and undone after. pairs: as of ``pair-connect``."""

    name: str
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
    command = f"{PROGRAM} fleet pairs --nodes a,b --ssh-options={options} {PATIENCE} --json"
    command += f" --carry never --remote-command {folder}/tool {folder}/launch.sh"
    wait = f"until ssh {options} b true; do sleep 1; done"
    return [
        *lines,
        f"{wait} 2>/dev/null",
        f"echo; echo '== fleet'; {command} 2>/run/error; echo; echo '== fleet ends'; echo $?",
        f"cat /run/error /run/log; ssh {options} b touch /run/over",
    ]


def script(node: str, folder: Path) -> str:
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
    for number, case in enumerate(CASES):
        tried = f"--token t --seconds 90 --port {FIRST_PORT + number} --once --address 10.0.0.1"
        if node == "b":
            tried = f"--token t --seconds 90 --wait 90 --json --pairs {case.pairs}"
            tried += f" 10.0.0.1 {FIRST_PORT + number}"
        command = "pair-listen" if node == "a" else "pair-connect"
        lines += [
            case.done.get(node, ""),
            f"echo; echo '== report {case.name}'; {PROGRAM} fleet node --name {node} 2>&1",
            f"echo; echo '== pair {case.name}'; {PROGRAM} fleet {command} {tried} 2>&1",
            case.undone.get(node, ""),
        ]
    lines += fleet_script(node, folder)
    return "\n".join([*lines, "echo", "echo '== end'", "true", ""])


class Seen(NamedTuple):
    """Of one case: what the reports of both nodes come to, and what was measured."""

    rails: RailAnswer
    pair: Any

    def measured(self) -> dict[tuple[str, str], Any]:
        return {(one["here"]["device"], one["there"]["device"]): one for one in self.pair["pairs"]}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("pair")
    prepare(folder)
    said = run_pair({node: script(node, folder) for node in NODES}, folder, LIMIT_SECONDS)
    return {node: _parts(lines) for node, lines in said.items()}


@pytest.fixture(scope="module")
def seen(parts: dict[str, dict[str, str]]) -> dict[str, Seen]:
    return {
        case.name: Seen(
            rail_answer([_row(parts[node][f"report {case.name}"]) for node in NODES], ()),
            json.loads(parts["b"][f"pair {case.name}"]),
        )
        for case in CASES
    }


def _parts(lines: list[str]) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    here: list[str] = []
    for line in lines:
        if line.startswith("== "):
            here = parts.setdefault(line[3:], [])
        else:
            here.append(line)
    return {name: "\n".join(part) for name, part in parts.items()}


def _row(report: str) -> NodeRow:
    (row,) = Reading().read(Text("guest", 1, report.strip().encode()))
    assert isinstance(row, NodeRow), report[-2000:]
    return row


def checks(answer: RailAnswer) -> set[tuple[str, str]]:
    return {(finding.check, finding.status) for finding, _ in answer.findings}


def test_a_rail_reaches_itself_and_no_other(seen: dict[str, Seen]) -> None:
    """Facts and packets agree on every pair of ports of two healthy nodes."""
    healthy = seen["healthy"]
    (meeting,) = healthy.rails.matrix.meetings
    foretold = {(one.device, other.device): way.reach.value for one, other, way in meeting.pairs}
    rails = {("rxe0", "rxe0"): "direct", ("rxe1", "rxe1"): "direct"}
    crossed = {("rxe0", "rxe1"): "no route", ("rxe1", "rxe0"): "no route"}
    assert foretold == rails | crossed
    measured = healthy.measured()
    assert {pair for pair, one in measured.items() if one["failure"] is None} == set(rails)
    assert {pair for pair, one in measured.items() if one["failure"]} == set(crossed)
    assert all(measured[pair]["large_seconds"] > 0 for pair in rails)
    assert checks(healthy.rails) == {("fleet.rail-cross", "warn")}


@pytest.mark.parametrize(
    ("case", "findings", "failure", "cause"),
    [
        (
            "mtu",
            {("fleet.rail-mtu", "warn")},
            "remote invalid request error (9) on a write of 65536 B",
            "the path MTUs differ: 4096 B here, 1024 B there",
        ),
        (
            "astray",
            set(),
            "transport retry counter exceeded (12) on a write of 64 B",
            "nothing arrives, and the other way it does",
        ),
    ],
)
def test_the_broken_rail_is_found(
    seen: dict[str, Seen], case: str, findings: set[tuple[str, str]], failure: str, cause: str
) -> None:
    """By measuring in every case, by facts where facts tell; the other rail works."""
    measured = seen[case].measured()
    assert measured["rxe0", "rxe0"]["failure"] is None
    broken = measured["rxe1", "rxe1"]
    assert broken["failure"]["text"] == failure
    assert cause in broken["cause"]
    assert seen[case].pair["status"] == "fail"
    assert checks(seen[case].rails) == {("fleet.rail-cross", "warn")} | findings


def test_what_facts_leave_open_packets_settle(seen: dict[str, Seen]) -> None:
    """Two subnets on one link, without a route: unknown by the facts, and it works."""
    assert ("fleet.rail-same", "unknown") in checks(seen["subnet"].rails)
    rail = seen["subnet"].measured()["rxe1", "rxe1"]
    assert rail["facts"]["reason"] == "no route between 10.1.0.0/24 and 10.9.0.0/24"
    assert rail["failure"] is None
    assert seen["subnet"].pair["status"] == "pass"


def test_one_command_finds_the_rail_that_is_broken_one_way(
    parts: dict[str, dict[str, str]],
) -> None:
    """Over ssh, in both machines: what the launch takes is tried, both ways; the one rail is named
    by node, NIC and direction, and the other passes."""
    told = parts["a"]["fleet"]
    answer = json.loads(told)
    jsonschema.validate(answer, PAIRS_SCHEMA)
    assert answer["status"] == "fail", told + parts["a"]["fleet ends"]
    (group,) = answer["groups"]
    assert group["pairs"] == "b rxe1 to a rxe1"
    assert "nothing arrives, and the other way it does" in group["cause"]
    (pair,) = answer["pairs"]
    flows = {
        (way["source"], flow["source_port"], way["target"], flow["target_port"]): flow["status"]
        for way in pair["directions"]
        for flow in way["flows"]
    }
    assert flows == {
        ("a", "rxe0", "b", "rxe0"): "pass",
        ("b", "rxe0", "a", "rxe0"): "pass",
        ("a", "rxe1", "b", "rxe1"): "pass",
        ("b", "rxe1", "a", "rxe1"): "fail",
    }
    ends = [one[end] for one in pair["answer"]["pairs"] for end in ("here", "there")]
    assert {(end["mtu_bytes"], end["gid"].startswith("10.")) for end in ends} == {(512, True)}
    engine = [(one["what"], one["way"], one["error"]) for one in pair["answer"]["ports"]]
    assert {("engine", "out", ""), ("engine", "back", "")} <= set(engine)
