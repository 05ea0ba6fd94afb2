"""A launch held against what runs: each process of it, and each setting that is another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.framework.finding import Status
from checks.framework.recording import RecordingRoot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.command_inputs.host_source import Host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.live_servers.meant import launch_findings
from preflight.live_servers.running_launch import running_servers
from tests.builders.hosts import Host as MachineTree
from tests.live_servers.test_observing import huge, process

MASTER = "mooncake_master --rpc_port=50061 --metrics_port=9013"
CLIENT = (
    "mooncake_client --host=10.0.0.1 --port={port} --global_segment_size={size} --protocol=tcp "
    "--metadata_server=P2PHANDSHAKE --master_server_address=10.0.0.2:50061"
)
ONE, TWO = CLIENT.format(port=50070, size="64MB"), CLIENT.format(port=50071, size="32MB")
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --port {port}"
Row = tuple[str, Status, str, str]


def rows(
    folder: Path,
    launch: str,
    *running: str,
    environment: str = "PATH=/bin",
    caller: Mapping[str, str] | None = None,
    first_process: str | Unknown = "1 (init) S 0",
    mooncake_version: str | None = None,
) -> list[Row]:
    """Each finding: its program, its status, what it has and what it says."""
    root = folder / "host"
    for number, words in enumerate(running):
        process(root, 100 + number, words, environment=environment)
    (folder / "launch.sh").write_text(launch)
    given = LaunchWords((str(folder / "launch.sh"),), mooncake_version=mooncake_version)
    tree = Root(str(root))
    sized = size_and_needs(given, Host(RecordingRoot(tree), "/", caller or {}, None))
    assert sized is not None
    kinds = frozenset(each.kind for each in sized.sizing.inputs.processes)
    servers = running_servers(tree, (), sized.options, kinds)
    return [
        ("" if server is None else server.name, one.status, one.have, one.text)
        for server, one in launch_findings(sized.sizing, servers, first_process)
    ]


@pytest.mark.parametrize(
    ("launch", "running"),
    [
        (f"{MASTER} &\n{ONE} &\n{TWO}\n", (MASTER, ONE, TWO)),
        (f"{ONE} &\n{TWO}\n", (TWO, ONE)),  # told apart by their ports
        (f"{SERVER.format(port=30000)} &\n{SERVER.format(port=30001)}\n",
         (SERVER.format(port=30001), SERVER.format(port=30000))),
        ("numactl --membind=0 mooncake_master\n", ("mooncake_master",)),
        ("redis-server --port 6390 &\nmooncake_master\n",
         ("redis-server *:6390    ", "mooncake_master")),
        # What asks an engine for a container is not what runs in there.
        (f"docker run image:1 {ONE}\n", (ONE, f"docker run image:1 {ONE}")),
        ("mooncake_master --v=1\n", ("mooncake_master --v=1",)),
        # A gate that still checks is not the server; where it has passed, it is.
        (f"mooncake-preflight exec -- {ONE}\n", (ONE, f"python3 mp.pyz exec -- {ONE}")),
    ],
)  # fmt: skip
def test_what_runs_as_the_launch_says(
    tmp_path: Path, launch: str, running: tuple[str, ...]
) -> None:
    found = rows(tmp_path, launch, *running)
    assert {status for _, status, _, _ in found} == {Status.PASS}
    assert len(found) == len(launch.splitlines())


def test_what_the_launch_leaves_open_is_named(tmp_path: Path) -> None:
    flag = "--rpc_address"
    launch, running = f"{MASTER} {flag}=$OWN_ADDRESS", f"{MASTER} {flag}=10.0.0.1"
    ((_, status, _, text),) = rows(tmp_path, launch, running)
    assert (status, text) == (Status.PASS, "the launch leaves open: rpc_address")


def test_what_does_not_run_is_named_with_the_nearest(tmp_path: Path) -> None:
    other = TWO.replace("50071", "50099")
    found = rows(tmp_path, f"{MASTER} &\n{ONE} &\n{TWO}\n", MASTER, ONE, other)
    missing = [row for row in found if row[1] is Status.WARN]
    assert [row[2] for row in missing] == ["not running"]
    assert "port 50099" in missing[0][3]
    assert [row[0] for row in found if row[1] is Status.SKIP] == ["mooncake_client, pid 102"]


def test_what_may_be_hidden_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "host/proc").mkdir(parents=True)
    found = rows(tmp_path, MASTER, first_process=Unknown("permission denied"))
    assert [row[1] for row in found] == [Status.UNKNOWN]


def test_settings_that_are_not_readable_are_unknown(tmp_path: Path) -> None:
    process(tmp_path / "host", 100, MASTER)
    (tmp_path / "host/proc/100/environ").unlink()
    (tmp_path / "host/proc/100/environ").mkdir()
    assert [row[1] for row in rows(tmp_path, MASTER)] == [Status.UNKNOWN]


@pytest.mark.parametrize(
    ("version", "statuses"),
    [("0.3.13.post1", [Status.PASS]), ("0.3.11.post1", [Status.WARN]), (None, [])],
)
def test_another_release_than_the_launch_was_judged_for(
    tmp_path: Path, version: str | None, statuses: list[Status]
) -> None:
    """Where nothing tells the release, none is promised."""
    process(tmp_path / "host", 100, MASTER)
    library = "7f00-7f01 r-xp 00000000 08:01 5 /opt/site/mooncake/mooncake_master\n"
    (tmp_path / "host/proc/100/maps").write_text(library)
    installed = "mooncake_transfer_engine-0.3.13.post1.dist-info"
    (tmp_path / "host/proc/100/root/opt/site" / installed).mkdir(parents=True)
    found = rows(tmp_path, MASTER, mooncake_version=version)
    assert [row[1] for row in found if row[2].startswith("mooncake 0")] == statuses


@pytest.mark.parametrize(("node", "status"), [(0, Status.PASS), (1, Status.WARN)])
def test_pages_on_another_node_than_the_launch_binds_it_to(
    tmp_path: Path, node: int, status: Status
) -> None:
    """What runs does not show the numactl that was in front of it."""
    root = MachineTree(nodes=(0, 1)).write(tmp_path / "host")
    process(root, 100, ONE, huge(32, {node: 32}))
    text = f"export MC_STORE_USE_HUGEPAGE=1\nnumactl --membind=0 {ONE}\n"
    (tmp_path / "launch.sh").write_text(text)
    tree = Root(str(root))
    words = LaunchWords((str(tmp_path / "launch.sh"),))
    sized = size_and_needs(words, Host(RecordingRoot(tree), "/", {}, None))
    assert sized is not None
    findings = launch_findings(sized.sizing, running_servers(tree), "1 (init) S 0")
    (finding,) = (each for _, each in findings if each.check == "observe.numa-node")
    assert finding.status is status


def test_a_program_whose_environment_another_user_hides_is_told_by_its_words(
    tmp_path: Path,
) -> None:
    """The one whose command line has the launch's port, whichever comes first; else none."""
    other, third = MASTER.replace("50061", "50062"), MASTER.replace("50061", "50063")
    for place, running in enumerate(((other, MASTER), (MASTER, other), (other, third))):
        folder = tmp_path / str(place)
        for number, words in enumerate(running):
            process(folder / "host", 100 + number, words)
            (folder / "host" / "proc" / str(100 + number) / "environ").unlink()
        named = {program: status for program, status, *_ in rows(folder, f"{MASTER} &\n")}
        for number, words in enumerate(running):
            status = Status.UNKNOWN if words == MASTER else Status.SKIP
            assert named.pop(f"mooncake_master, pid {100 + number}") is status
        assert list(named.values()) == ([] if MASTER in running else [Status.WARN])
