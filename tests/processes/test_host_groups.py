"""A launch for several hosts is put in groups, and a host is held against one, which is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.cli.main import run
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.launches.launch_files import read_text
from preflight.processes.host_groups import GroupChoice, HostGroup, choose_group, host_groups
from preflight.processes.processes import LaunchOptions, understand
from tests.builders.launched import written
from tests.tables import each_row

S = "python3 -m sglang.launch_server --model-path m "
N = f"{S}--nnodes 2 --port 30000 "
GUIDE = "".join(
    f"{N}--dist-init-addr {first}:5000 --node-rank {rank}\n"
    for first in ("10.0.0.1", "${DECODE}")
    for rank in (0, 1)
)


def groups(text: str, name: str = "launch.sh") -> tuple[HostGroup, ...]:
    reading = read_text(text, name, {})
    return host_groups(understand(reading.commands, lambda path: Unknown(path)))


def parts(text: str, name: str = "launch.sh") -> list[tuple[str, list[int]]]:
    return [(group.what, sorted(group.numbers)) for group in groups(text, name)]


def test_the_four_commands_of_a_guide_are_for_four_hosts() -> None:
    assert parts(f"mooncake_master &\n{GUIDE}") == [
        ("node rank 0 of 10.0.0.1:5000", [0, 1]),
        ("node rank 1 of 10.0.0.1:5000", [0, 2]),
        ("node rank 0 of ${DECODE}:5000", [0, 3]),
        ("node rank 1 of ${DECODE}:5000", [0, 4]),
    ]
    assert groups(GUIDE)[0].address == "10.0.0.1"


@pytest.mark.parametrize("first", ["127.0.0.1:5", "localhost:5", "[::1]:5"])
def test_nodes_that_meet_on_the_loopback_are_on_one_host(first: str) -> None:
    lines = (f"{N}--dist-init-addr {first} --node-rank {rank} &\n" for rank in (0, 1))
    assert groups("".join(lines)) == ()


@each_row(
    ("text", "what"),
    [
        (f"ssh -p 22 u@h1 {S}&\nssh h2 {S}&\n", ["host h1", "host h2"]),
        (f"srun -N 1 -w n1 {S}&\nsrun --nodelist=n2 {S}&\n", ["host n1", "host n2"]),
        (  # what the nodes are called, the job alone knows; that they are two is written
            "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"
            f'for i in 0 1; do srun -N1 -w "${{nodes[$i]}}" {S}& done\n',
            ["host ${nodes[0]}", "host ${nodes[1]}"],
        ),
        (f"{S}--host 10.0.0.1 &\n{S}--host 10.0.0.2\n", ["10.0.0.1", "10.0.0.2"]),
        (
            f"{N}--dist-init-addr 10.0.0.1:5 --node-rank 0 &\n"
            f"{N}--dist-init-addr 10.0.0.1:5 --node-rank 1 --host 10.0.0.2 &\n"
            "mooncake_client --host=10.0.0.1 &\n",
            ["node rank 0 of 10.0.0.1:5", "node rank 1 of 10.0.0.1:5"],
        ),
        (
            f"{S}--port 30000 &\n{N}--dist-init-addr 10.0.0.1:5 --node-rank 0 &\n",
            ["node rank 0 of 10.0.0.1:5", "what launch.sh:1 starts"],
        ),
        (f"{S}\n{S}--tp 2\n", ["what launch.sh:1 starts", "what launch.sh:2 starts"]),
    ],
)
def test_what_tells_hosts_apart(text: str, what: list[str]) -> None:
    assert [group for group, _ in parts(text)] == what


def test_what_ssh_starts_on_another_host_is_said_to_be_there() -> None:
    """A pass of this host is none of that one."""
    (group,) = groups(f"ssh -p 22 u@h1 '{S}'\n")
    assert (group.what, group.address) == ("host h1", "h1")
    said = GroupChoice(group, "it is the first", (group,)).text
    assert said == "this launch runs on host h1: checked here as if this were that host"
    assert groups(f"ssh localhost '{S}'\n") == ()


@pytest.mark.parametrize(
    "text",
    [
        f"{S}--port 1 &\n{S}--port 2 &\n",  # side by side
        f"{S}&\n{S}&\n",  # two users of one port: a mistake, and no second host
        f"{N}--dist-init-addr $A --node-rank $RANK\n",  # the same text on every host
        f"{S}--host 0.0.0.0 &\n{S}--host 127.0.0.1 --port 2 &\n",
        f"ssh h1 {S}&\nmooncake_master\n",
    ],
)
def test_what_may_run_on_one_host_is_for_one(text: str) -> None:
    assert parts(text) == []


def test_leader_and_workers_of_a_group_of_pods_are_on_hosts_of_their_own() -> None:
    command = json.dumps([*N.split(), "--dist-init-addr", "$(LWS_LEADER_ADDRESS):5", "--node-rank"])
    spec = f"{{spec: {{containers: [{{name: c, command: {command}, args: [RANK]}}]}}}}"
    leader, worker = spec.replace("RANK", "'0'"), spec.replace("RANK", "$(LWS_WORKER_INDEX)")
    manifest = (
        "kind: LeaderWorkerSet\nmetadata: {name: l}\nspec:\n  leaderWorkerTemplate:\n"
        f"    size: 2\n    leaderTemplate: {leader}\n    workerTemplate: {worker}\n"
    )
    assert [what for what, _ in parts(manifest, "l.yaml")] == [
        "pod LeaderWorkerSet/l",
        "pod LeaderWorkerSet/l worker",
    ]


def pod(name: str, *ports: str) -> str:
    given = ", ".join(f"{{containerPort: 1, {port}}}" for port in ports)
    container = f"{{name: c, command: [mooncake_client], ports: [{given}]}}"
    return f"kind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{container}]}}\n---\n"


def test_pods_of_one_host_port_are_never_on_one_host() -> None:
    manifest = "".join(
        (
            pod("a", "hostPort: 80"),
            pod("b", "hostPort: 80, hostIP: 127.0.0.1"),
            pod("c", "hostPort: 81"),
            pod("d", "hostPort: 81"),
            pod("e", "hostPort: 80, hostIP: 127.0.0.2"),
            pod("f", "hostPort: 82"),
        )
    )
    assert parts(manifest, "p.yaml") == [
        ("pod Pod/a and Pod/c", [0, 2, 5]),
        ("pod Pod/b and Pod/d and Pod/e", [1, 3, 4, 5]),
    ]
    apart = pod("a", "hostPort: 80, hostIP: 127.0.0.1") + pod(
        "b", "hostPort: 80, hostIP: 127.0.0.2"
    )
    assert parts(apart + pod("c"), "p.yaml") == []


def host(tmp_path: Path, name: str = "", address: str = "") -> Root:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/sys/kernel/hostname").write_text(f"{name}.example\n")
    (tmp_path / "proc/net/fib_trie").write_text(
        f"Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- {address}\n        /32 host LOCAL\n"
    )
    return Root(str(tmp_path))


def test_a_host_is_held_against_its_own_group_and_says_why(tmp_path: Path) -> None:
    text = f"ssh h1 {S}&\nssh h2 {S}&\n"
    processes = understand(read_text(text, "l.sh", {}).commands, lambda path: Unknown(path))
    taken = choose_group(processes, None, host(tmp_path / "a", "h2"))
    assert taken is not None
    assert (taken.group.what, taken.why) == ("host h2", "h2 is this host's")
    other = choose_group(processes, None, host(tmp_path / "b", "z"))
    assert other is not None
    assert "only what runs on host h1 (group 1) is checked here: nothing says" in other.text
    assert "--host-group takes 2 (host h2)" in other.text
    asked = choose_group(processes, "2", host(tmp_path / "c"))
    assert asked is not None
    assert asked.group.what == "host h2"
    with pytest.raises(UsageError, match=r"'5' is not a group of the launch: 1 \(host h1\), 2"):
        choose_group(processes, "5", host(tmp_path / "d"))
    guide = understand(read_text(GUIDE, "l.sh", {}).commands, lambda path: Unknown(path))
    mine = choose_group(guide, None, host(tmp_path / "e", address="10.0.0.1"))
    assert mine is not None
    assert mine.why == "10.0.0.1 is this host's"


def test_only_the_groups_own_processes_are_sized_and_the_first_with_hicache_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{S}\n{S}--enable-hierarchical-cache --hicache-size 20\n")
    root = host(tmp_path / "host")
    launch = read_launch((str(path),), (), {}, root)
    sizing = size_written(launch, LaunchOptions(), root)
    assert [process.number for process in sizing.inputs.processes] == [1]
    assert [process.number for process in sizing.whole] == [0, 1]
    first = size_written(launch, LaunchOptions(host_group="1"), root)
    assert [process.number for process in first.inputs.processes] == [0]
    run(["check", "--root", "demo:h800", str(path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "this launch starts 2 servers on one port" in said
    assert "the first with HiCache; --host-group takes 1" in said
    assert run(["read", "--json", "--root", str(tmp_path / "host"), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [process["group"] for process in found["answer"]["processes"]] == [
        f"what {path}:1 starts (group 1)",
        f"what {path}:2 starts (group 2)",
    ]
