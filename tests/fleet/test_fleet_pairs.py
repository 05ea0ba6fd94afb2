"""``fleet pairs`` over a real ssh server: rounds, broken ends, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run as main
from tests.fleet.sshd_farm import (
    AS_ASKED,
    PATIENCE_SECONDS,
    Farm,
    Login,
    address_of,
    farm,
    name_of,
)
from tests.fleet.test_fleet_check import site
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/pairs-v1.schema.json").read_text())
INSTALLED, ALSO_INSTALLED, CARRIED, DEAF, REFUSING, IDLE = range(41, 47)
GATEWAY, BESIDE = 47, 48

Json = dict[str, Any]

TOOL = f"""\
#!/bin/sh
export PYTHONPATH={ROOT}
exec {sys.executable} -m preflight.cli.main "$@"
"""
# Has the program, and something else in place of its listener.
LISTENER_INSTEAD = TOOL.replace("exec", 'test "$2" = pair-listen && {instead}\nexec')
# Listens where nobody asks.
ELSEWHERE = f'exec {sys.executable} -m preflight.cli.main "$@" --port 0'
ENDS = "{ echo no more sockets >&2; exit 70; }"
# Without the program and without any package.
PYTHON = f'#!/bin/sh\nexec {sys.executable} -S "$@"\n'


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("pairs")
    logins = {
        INSTALLED: Login({"mooncake-preflight": TOOL}),
        ALSO_INSTALLED: Login({"mooncake-preflight": TOOL}),
        CARRIED: Login({"python3": PYTHON}),
        DEAF: Login({"mooncake-preflight": LISTENER_INSTEAD.format(instead=ENDS)}),
        IDLE: Login({"mooncake-preflight": LISTENER_INSTEAD.format(instead=ELSEWHERE)}),
        GATEWAY: Login({}, f'echo "$SSH_ORIGINAL_COMMAND" >{folder}/gateway\n{AS_ASKED}'),
        BESIDE: Login({"mooncake-preflight": TOOL}),
    }
    with farm(folder, logins, (REFUSING,)) as made:
        yield made


def whole(printed: str) -> Json:
    """An answer, flat; as its schema has it."""
    found = json.loads(printed)
    if found["status"] != "error":
        valid(found, SCHEMA)
    return {**found, **(found["answer"] or {}), "launch": (found["launch"] or {}).get("source")}


def free_port() -> int:
    """One that nobody has on any address."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def command(made: Farm, numbers: Sequence[int], *words: str) -> list[str]:
    nodes = ["--nodes", ",".join(name_of(number) for number in numbers)]
    asked = ["fleet", "pairs", *nodes, made.options, "--port", str(free_port()), *words]
    return [sys.executable, "-m", "preflight.cli.main", *asked]


def run(
    made: Farm, numbers: Sequence[int], *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    asked = command(made, numbers, *words)
    return subprocess.run(
        asked,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_SECONDS,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def left_running(made: Farm) -> list[str]:
    """Processes of the farm's logins, and ssh's that lead to them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            of_login = f"TMPDIR={made.folder}/".encode() in environment
            if words and (of_login or f"-F{made.config}" in words):
                found.append(words)
    return found


def at_work(made: Farm) -> list[str]:
    """Of the ends of a pair, those that have been started."""
    running = left_running(made)
    ends = ("pair-connect --token", "--port 0")
    return [end for end in ends if any(end in words for words in running)]


def nothing_is_left(made: Farm) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while left := left_running(made):
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert [path for one in made.folder.glob("temporary-*") for path in one.iterdir()] == []


def has_rdma() -> bool:
    return any(Path("/sys/class/infiniband").glob("*"))


@pytest.mark.fleet
@pytest.mark.skipif(has_rdma(), reason="this machine has an RDMA device: pairs are tried")
def test_all_pairs_of_five_nodes(few: Farm) -> None:
    """TCP is measured between those that can; one that refuses and one that cannot listen are
    named with each of theirs, with the cause, and stop nobody."""
    numbers = (INSTALLED, ALSO_INSTALLED, CARRIED, DEAF, REFUSING)
    told = run(few, numbers, "--json")
    answer = whole(told.stdout)
    assert told.returncode == answer["exit_code"] == 3, told.stderr
    assert answer["answer"]["rounds"] == {"run": 5, "asked": 5, "whole": 5}
    found = {frozenset((one["here"], one["there"])): one for one in answer["answer"]["pairs"]}
    assert len(found) == len(answer["answer"]["pairs"]) == 10
    for one in answer["answer"]["pairs"]:
        both = {one["here"], one["there"]}
        if name_of(REFUSING) in both:
            assert "Connection refused" in one["cause"]
            assert (one["status"], one["answer"]) == ("unknown", None)
        elif one["there"] == name_of(DEAF):
            assert "exit code 70: no more sockets" in one["cause"]
            assert one["status"] == "unknown"
        else:
            assert one["status"] == "warn", one
            assert one["connect_seconds"] > 0
            assert "no RDMA port with a GID" in one["answer"]["error"]
    blamed = [one["blamed"] for one in answer["answer"]["pairs"]]
    assert blamed.count(name_of(REFUSING)) == 4
    addresses = {one["node"]: one["address"] for one in answer["answer"]["nodes"]}
    assert addresses[name_of(CARRIED)] == address_of(CARRIED)
    assert addresses[name_of(REFUSING)] is None
    assert "Traceback" not in told.stderr
    nothing_is_left(few)


TCP_LAUNCH = """\
export MOONCAKE_MASTER=10.0.0.100:50051 MOONCAKE_PROTOCOL=tcp
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 1 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake --port 30000
"""


@pytest.mark.fleet
def test_a_launch_over_tcp_needs_no_rdma(few: Farm, tmp_path: Path) -> None:
    """It is read on each node, the one with the program taken along too; TCP is tried both ways,
    and no RDMA port is missed."""
    path = tmp_path / "launch.sh"
    path.write_text(TCP_LAUNCH)
    told = run(few, (INSTALLED, CARRIED), "--json", str(path))
    answer = whole(told.stdout)
    assert (told.returncode, answer["status"], answer["launch"]) == (0, "pass", str(path))
    nothing_is_left(few)


@pytest.mark.fleet
def test_a_launch_that_asks_for_rdma_where_there_is_none(few: Farm, tmp_path: Path) -> None:
    """Never a pass, and never the warning of nodes of which nobody asks it."""
    path = tmp_path / "launch.sh"
    path.write_text(TCP_LAUNCH.replace("=tcp", "=rdma MOONCAKE_DEVICE=mlx5_0"))
    told = run(few, (INSTALLED, ALSO_INSTALLED), "--json", str(path))
    answer = whole(told.stdout)
    assert (told.returncode, answer["status"]) == (3, "unknown")
    (pair,) = answer["answer"]["pairs"]
    assert "gets no RDMA device (mlx5_0: this host has no such RDMA device)" in pair["cause"]
    assert pair["answer"]["closed"] == ""


@pytest.mark.fleet
@pytest.mark.skipif(has_rdma(), reason="this machine has an RDMA device: pairs are tried")
def test_pairs_behind_a_gateway(few: Farm, tmp_path: Path) -> None:
    """Each node gets its own words through ClusterShell's tree; three behind it, one beside it."""
    behind = (INSTALLED, ALSO_INSTALLED, CARRIED)
    environment = site(tmp_path / "site", GATEWAY, *behind)
    told = run(few, (*behind, BESIDE), "--json", **environment)
    answer = whole(told.stdout)
    assert (told.returncode, answer["status"]) == (1, "warn"), told.stderr
    assert len(answer["answer"]["pairs"]) == 6
    assert all(pair["connect_seconds"] > 0 for pair in answer["answer"]["pairs"])
    assert "ClusterShell.Gateway" in (few.folder / "gateway").read_text()
    nothing_is_left(few)


@pytest.mark.fleet
def test_an_interruption_ends_both_ends(few: Farm) -> None:
    """While a pair is at work; what is known of it by then is printed."""
    # The one end never listens, so that the other asks for it again and again.
    started = subprocess.Popen(
        command(few, (INSTALLED, IDLE), "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    until = time.monotonic() + PATIENCE_SECONDS
    while not {"pair-connect --token", "--port 0"} <= set(at_work(few)):
        assert time.monotonic() < until
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, error = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 130, error
    answer = whole(out)
    assert (answer["interrupted"], answer["exit_code"]) == (True, 130)
    (pair,) = answer["pairs"]
    assert (pair["status"], pair["answer"]) == ("unknown", None)
    assert "interrupted: 1 of 1 pairs" in error
    assert "Traceback" not in error
    nothing_is_left(few)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "a"], "a pair takes two nodes, and 1 is left"),
        ([], "and 0 is left"),
        (["--nodes", "a[1-2]", "--connect-timeout", "55"], "leaves less than 10 s of --timeout"),
        (["--nodes", "a[1-2]", "--remote-command", "'"], "No closing quotation"),
        (["--nodes", "a[1-2]", "--rounds", "0"], "--rounds"),
        (["--nodes", "a[1-2]", "/nowhere.sh"], "'/nowhere.sh' does not exist"),
        (["--nodes", "a[1-2]", "--mooncake-version", "0.3.13"], "is about a launch"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    """With 64 and a sentence, before any node is asked; --json is an object here too."""
    pytest.importorskip("ClusterShell")
    assert main(["fleet", "pairs", "--json", *words]) == 64
    printed = capsys.readouterr()
    assert said in printed.err
    assert said in whole(printed.out)["reason"]
