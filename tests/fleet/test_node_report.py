"""A node's report as its schema has it, what is in it, and what stands for a node without one."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from preflight.fleet.node.rails import routes
from preflight.fleet.node.report import absent, error_object, node_report, one_line
from preflight.fleet.remote.sent_launch import sent_launch

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.cli.main import run
from preflight.fleet.remote import psutil_stand_in
from preflight.fleet.remote.program import COMMAND, SAYS, Program, zipapp
from preflight.fleet.remote.reply import NodeReply, lacks_tool, report_of
from preflight.inputs.launch_words import ALL_CHECKS, Chosen, LaunchWords, Waiver
from tests.builders.synthetic import PATIENCE_SECONDS, SyntheticHost, build_host, plain_host
from tests.fleet.conftest import LAUNCH, node_host
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/node-v1.schema.json").read_text())
# A fleet of ten thousand is read at once: 200 MB of text, and not more.
MOST_BYTES = 20_000

Json = dict[str, Any]


def report_on(path: Path, host: SyntheticHost, launch: str = LAUNCH, *waived: Waiver) -> Json:
    """The report of ``host``, as its schema has it."""
    build_host(path / "node", host)
    script = path / "launch.sh"
    script.write_text(launch)
    given = LaunchWords((str(script),) if launch else ())
    found = node_report(
        given, str(path / "node"), PATIENCE_SECONDS, "gpu001", Chosen(ignore=waived)
    )
    valid(found, SCHEMA)
    return found


def test_the_schema_is_one() -> None:
    """And every report that is made without a node is as it says."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for made in (absent("gpu001", "fleet.ssh", "no"), error_object("gpu001", 64, "no")):
        valid(made, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        valid({**absent("gpu001", "fleet.ssh", "no"), "more": 1}, SCHEMA)


def test_what_a_fleet_compares(tmp_path: Path) -> None:
    """Facts, rails and the launch of a whole machine, each in its place, in one line."""
    found = report_on(tmp_path, node_host(7))
    assert found["node"] == "gpu001"
    assert found["host"] == "node"
    facts = found["facts"]
    assert facts["kernel"] == "6.8.0-60-generic"
    assert facts["gpu.names"] == "8 x NVIDIA H800"
    assert facts["mlx5_3.firmware"] == "28.39.1002"
    assert facts["mlx5_3:1.rate"] == "400 Gb/sec (4X NDR)"
    assert facts["mlx5_3:1.mtu_bytes"] == 4096
    assert facts["mlx5_3:1.netdev_mtu_bytes"] == 9000
    assert facts["limit.memlock"] == "unlimited"
    assert facts["wheel.sglang"] == "0.5.23"
    assert facts["hugetlb.2048KiB.pages"] == 0
    rail = found["rails"][3]
    assert (rail["device"], rail["port"], rail["used"]) == ("mlx5_3", 1, True)
    assert (rail["gid_index"], rail["gid_type"], rail["gid"]) == (3, "RoCE v2", "10.3.0.7")
    assert rail["addresses"] == ["10.3.0.7/24"]
    launch = found["launch"]
    assert launch["masters"] == ["10.0.0.100:50051"]
    assert (launch["segment_bytes"], launch["stores"]) == (64 << 30, 8)
    assert launch["protocol"] == "rdma"
    assert launch["ports"] == [["HTTP port", 30000]]
    assert launch["mtu_limit_bytes"] == 4096
    assert "\n" not in one_line(found)
    assert len(one_line(found)) < MOST_BYTES


@pytest.mark.slow
def test_like_nodes_differ_in_their_addresses_alone(tmp_path: Path) -> None:
    """So that whatever else differs between two nodes is worth a word."""
    one = report_on(tmp_path, node_host(1))
    (tmp_path / "node").rename(tmp_path / "other")
    other = report_on(tmp_path, node_host(2))
    assert one["facts"] == other["facts"]
    assert one["launch"] == other["launch"]
    assert [rail["gid"] for rail in one["rails"]] != [rail["gid"] for rail in other["rails"]]


@pytest.mark.slow
def test_findings_are_counted_and_folded(tmp_path: Path) -> None:
    """What fails is there in full, with the verdict and its exit code; a waiver is visible."""
    host = replace(node_host(1), uid=1000, capabilities=0, memlock=("8388608", "8388608"))
    found = report_on(tmp_path, host)
    assert (found["status"], found["exit_code"]) == ("fail", 2)
    first = found["findings"][0]
    assert (first["check"], first["status"]) == ("memlock.limit", "fail")
    assert len(first["subjects"]) == 1
    assert found["counts"]["fail"] == sum(
        len(one["subjects"]) for one in found["findings"] if one["status"] == "fail"
    )
    (tmp_path / "waived").mkdir()
    waived = report_on(
        tmp_path / "waived", host, LAUNCH, Waiver("memlock.limit", "set by the launcher")
    )
    assert waived["counts"]["ignored"] > 0
    assert "set by the launcher" in [one.get("ignored") for one in waived["findings"]]


def test_a_node_with_nothing(tmp_path: Path) -> None:
    """No GPU, no RDMA, no launch: lists are empty, and nothing is made up."""
    found = report_on(tmp_path, plain_host(), "")
    assert found["rails"] == []
    assert found["launch"] is None
    assert found["facts"]["gpu.count"] == 0
    assert not [name for name in found["facts"] if name.startswith("mlx5")]


def test_a_folder_with_nothing(tmp_path: Path) -> None:
    """What cannot be read is among the unknown facts or absent, never a value."""
    (tmp_path / "empty/proc").mkdir(parents=True)
    found = node_report(LaunchWords(), str(tmp_path / "empty"), PATIENCE_SECONDS, "")
    valid(found, SCHEMA)
    assert found["node"] == "empty"
    assert found["status"] == "unknown"
    assert not found["facts"].keys() & found["unknown_facts"].keys()
    assert "kernel" not in found["facts"]


def test_the_command_prints_one_object_whatever_happens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A launch that is none is an error report, and a usage error."""
    assert run(["fleet", "node", "--name", "gpu009", f"{tmp_path}/none.sh"]) == 64
    told = json.loads(capsys.readouterr().out)
    valid(told, SCHEMA)
    assert (told["node"], told["status"]) == ("gpu009", "error")
    assert "does not exist" in told["error"]


def test_routes_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    """Recorded tables; without them the routes are unknown."""
    folder = tmp_path / "proc/net"
    folder.mkdir(parents=True)
    assert isinstance(routes(Root(str(tmp_path))), Unknown)
    (folder / "route").write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "*\t0000010A\t00000000\t0200\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    (folder / "ipv6_route").write_text(
        "fd000000000000000000000000000000 40 " + "0" * 32 + " 00 " + "0" * 32 + " 00000100 00000001"
        " 00000000 00000001     eth1\n"
        "fe800000000000000000000000000000 40 " + "0" * 32 + " 00 " + "0" * 32 + " 00000100 00000001"
        " 00000000 00000001     eth1\n"
    )
    assert routes(Root(str(tmp_path))) == (
        ("0.0.0.0/0", "192.0.2.1", "eth0"),
        ("10.0.0.0/24", "", "eth1"),
        ("fd00::/64", "", "eth1"),
    )
    (folder / "route").write_text("Iface\nnonsense\n")
    assert isinstance(routes(Root(str(tmp_path))), Unknown)


def test_this_machines_own_routes() -> None:
    """The live tables, as the kernel has them: every destination is a network."""
    found = routes(Root())
    assert not isinstance(found, Unknown)
    for route in found:
        ipaddress.ip_network(route.destination)
        assert route.gateway == "" or ipaddress.ip_address(route.gateway)


START = b"@mooncake-preflight start"
WHOLE = one_line({**absent("x", "fleet.ssh", "no"), "status": "pass", "exit_code": 0}).encode()


@pytest.mark.parametrize(
    ("lines", "code", "error", "check", "said"),
    [
        ((), 255, b"ssh: connect to host a port 22: No route to host", "fleet.ssh", "nothing answ"),
        ((), 255, b"a@b: Permission denied (publickey).", "fleet.ssh", "--user"),
        ((), 255, b"", "fleet.ssh", "no reason given"),
        ((), 255, b"\x1b[2Jwiped", "fleet.ssh", "\\x1b[2Jwiped"),
        ((), 76, b"", "fleet.ssh", "the gateway of ClusterShell's tree that leads to it gave up"),
        ((b"Welcome",), 1, b"no shell", "fleet.report", "exit code 1: no shell"),
        ((START,), 255, b"", "fleet.report", "before its report came"),
        ((START, WHOLE), 255, b"", "fleet.report", "in the middle"),
        ((START, WHOLE[:80], b"@mooncake-preflight end 0"), 0, b"", "fleet.report", "no JSON"),
        (
            (START, b'{"schema":"mooncake-preflight/node/v9"}', b"@mooncake-preflight end 0"),
            *(0, b"", "fleet.report", "another format: mooncake-preflight/node/v9"),
        ),
        (
            (START, b'{"schema":"mooncake-preflight/node/v1"}', b"@mooncake-preflight end 0"),
            *(0, b"", "fleet.report", "has no version, node"),
        ),
        ((START, b"@mooncake-preflight end 137"), 0, b"", "fleet.report", "exit code 137"),
        ((START, b"@mooncake-preflight end no-tool"), 0, b"", "fleet.tool", "--remote-command"),
        ((START, b"@mooncake-preflight end old-python 3.6.8"), 0, b"", "fleet.python", "another"),
        ((b"@mooncake-preflight end no-folder",), 0, b"tar: no", "fleet.folder", "tar: no"),
        ((START,), None, b"", "fleet.interrupted", "before it answered"),
    ],
)
def test_what_stands_for_a_node(
    lines: tuple[bytes, ...], code: int | None, error: bytes, check: str, said: str
) -> None:
    """Each way in which an answer can be none; the report is one all the same."""
    found = report_of(NodeReply("gpu001", lines, (error,), code), 60)
    valid(found, SCHEMA)
    assert (found["node"], found["status"], found["exit_code"]) == ("gpu001", "unknown", 3)
    (finding,) = found["findings"]
    assert finding["check"] == check
    assert said in finding["text"]


def test_a_report_is_found_between_banners() -> None:
    """And goes by the name that the node was asked by, not by its own."""
    lines = (b"Welcome", START, b'{"schema": "x"}', WHOLE, b"@mooncake-preflight end 0", b"bye")
    found = report_of(NodeReply("gpu007", lines, (), 0), 60)
    assert (found["node"], found["status"]) == ("gpu007", "pass")


def test_a_program_that_is_too_old_is_one_that_is_missing() -> None:
    """A release before ``fleet`` says so in click's words; then it is carried there."""
    old = (START, b"@mooncake-preflight end 64")
    assert lacks_tool(NodeReply("a", old, (b"Error: No such command 'fleet'.",), 0))
    assert not lacks_tool(NodeReply("a", old, (b"Error: 'x.sh' does not exist",), 0))
    assert not lacks_tool(NodeReply("a", (START, WHOLE, b"@mooncake-preflight end 0"), (), 0))


SHELLS = ("sh", "bash", "zsh", "ksh", "tcsh", "fish", "busybox")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_login_shell_runs_what_is_sent(tmp_path: Path, shell: str) -> None:
    """Whichever is here; standard input stays open meanwhile, and nothing is left behind.

    busybox stands for all that a small distribution has: its own tar, head and mktemp.
    """
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    path, words = os.environ["PATH"], [program, "-c", COMMAND]
    if shell == "busybox":
        path, words = str(tmp_path / "programs"), [program, "sh", "-c", COMMAND]
        (tmp_path / "programs").mkdir()
        for name in ("sh", "mktemp", "head", "tar", "rm", "cat", "sleep", "setsid", "echo"):
            (tmp_path / "programs" / name).symlink_to(program)
    (tmp_path / "temporary").mkdir()
    awkward = ("a  b", "x'y", "$HOME", "`id`", "line\nfeed", "!!")
    # echo is no help: shells differ in what they make of a backslash.
    tool = ["sh", "-c", 'for word; do echo "<$word>"; done', "tool"]
    started = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": path, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert started.stdin is not None
    assert started.stdout is not None
    started.stdin.write(
        Program(tuple(tool), "", "never").content({"launch.sh": b""}, awkward, carried=False)
    )
    started.stdin.flush()
    assert started.wait(PATIENCE_SECONDS) == 0
    said = started.stdout.read().decode()
    started.stdin.close()
    started.stdout.close()
    written = "".join(f"<{word}>\n" for word in awkward)
    assert said == f"{SAYS} start\n{written}\n{SAYS} end 0\n"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_the_launch_travels_with_what_it_names(tmp_path: Path) -> None:
    """Its text, its env file and the configuration beside it; what has an absolute name stays."""
    (tmp_path / "env").write_text("A=1\n")
    (tmp_path / "store.json").write_text('{"master_server_address": "10.0.0.100:50051"}')
    script = tmp_path / "run.sh"
    script.write_text("export SGLANG_HICACHE_MOONCAKE_CONFIG_PATH=store.json\n" + LAUNCH)
    sent = sent_launch(
        LaunchWords((str(script),), (str(tmp_path / "env"),), rank_nodes=(0, 1)), 10, ALL_CHECKS
    )
    assert sent.files == {
        "env": b"A=1\n",
        "store.json": (tmp_path / "store.json").read_bytes(),
        "2-run.sh": script.read_bytes(),
    }
    assert sent.words[:3] == ("fleet", "node", "--timeout=10")
    assert sent.words[-4:] == ("--rank-numa-nodes=0,1", "--env-file=env", "--", "2-run.sh")


@pytest.mark.parametrize(
    ("launch", "ignored", "said"),
    [
        (LaunchWords(("/nowhere.sh",)), (), "does not exist"),
        (LaunchWords(sglang_version="0.5.23"), (), "--sglang-version is about a launch"),
        (LaunchWords(("python3", "-m", "sglang.launch_server"), mooncake_version="9"), (), "'9'"),
        (LaunchWords(), (Waiver("nosuch", "thing"),), "no check has this id"),
    ],
)
def test_a_mistake_is_told_before_a_node_is_asked(
    launch: LaunchWords, ignored: tuple[Waiver, ...], said: str
) -> None:
    """Ten thousand nodes need not tell it."""
    with pytest.raises(UsageError, match=said):
        sent_launch(launch, 10, Chosen(ignore=ignored))


@pytest.mark.slow
def test_the_carried_program_needs_python_alone(tmp_path: Path) -> None:
    """-I -S: no package of this machine is seen; it says what the installed one says."""
    archive = tmp_path / "tool.pyz"
    archive.write_bytes(zipapp())
    told = subprocess.run(
        [sys.executable, "-I", "-S", str(archive), "fleet", "node"],
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    found = json.loads(told.stdout)
    valid(found, SCHEMA)
    assert told.returncode == found["exit_code"]
    assert found["facts"]["kernel"]
    assert [path.name for path in tmp_path.iterdir()] == ["tool.pyz"]


@pytest.mark.slow
def test_the_carried_program_is_the_same_bytes_each_time() -> None:
    """Python and tables alone: no C of this machine, and nothing that was compiled for it."""
    made = zipapp()
    zipapp.cache_clear()
    assert made == zipapp()
    with zipfile.ZipFile(BytesIO(made)) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    assert {"__main__.py", "stand_in/psutil.py", "pynvml.py", "yaml/__init__.py"} <= {*names}
    assert len(names) == len({*names})


def test_the_stand_in_says_what_psutil_says() -> None:
    """Held against the real one, on this machine."""
    real = {
        name: sorted(
            entry.address.partition("%")[0] for entry in entries if entry.family in (2, 10)
        )
        for name, entries in psutil.net_if_addrs().items()
    }
    own = {
        name: sorted(entry.address for entry in entries)
        for name, entries in psutil_stand_in.net_if_addrs().items()
    }
    assert {name: found for name, found in own.items() if found} == {
        name: found for name, found in real.items() if found
    }
    up = {name: state.isup for name, state in psutil.net_if_stats().items()}
    assert {name: state.isup for name, state in psutil_stand_in.net_if_stats().items()} == up
