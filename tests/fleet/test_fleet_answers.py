"""``fleet measure`` and ``fleet observe``: every pair once, nobody twice at a time; who is slow is
named; and nodes over a real ssh server, with the real library.

Those nodes are network namespaces of this machine: a link, an address and an ssh server each.
Between them packets take a real way, over a bridge, that ``tc`` can slow.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.over_ssh import MeasuredPair, pairs_answer, rounds
from preflight.fleet.reports.rows import FleetFinding
from tests.fleet.sshd_farm import PRIVILEGE_FOLDER, executable, server
from tests.fleet.sshd_farm import why_not as why_no_ssh
from tests.paths import ROOT
from tests.real.conftest import Store, install_release
from tests.real.conftest import why_not as why_no_wheel
from tests.real.measures import processes_of
from tests.valid import valid

PORT = 22
# RFC 2544: for tests of networks, so no route of this machine is hidden.
NETWORK = "198.18.77"


class Hosts(NamedTuple):
    """config: for ssh -F. namespaces: of each host, by its name for ssh."""

    config: Path
    namespaces: Mapping[str, str]

    def address(self, host: str) -> str:
        return f"{NETWORK}.{1 + list(self.namespaces).index(host)}"

    @contextmanager
    def slow(self, host: str, rate: str) -> Iterator[None]:
        """Let out no more than ``rate``, as tc writes it, of one host's link."""
        namespace = self.namespaces[host]
        shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", *shape)
        try:
            yield
        finally:
            _run("tc", "-n", namespace, "qdisc", "del", "dev", "eth0", "root")


def why_no_hosts() -> str | None:
    """Return why no namespace can be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if not all(map(shutil.which, ("ip", "tc", "nsenter"))):
        return "needs ip, tc and nsenter (apt-get install iproute2 util-linux)"
    return why_no_ssh()


@contextmanager
def hosts(folder: Path, programs: Mapping[str, str]) -> Iterator[Hosts]:
    """Run hosts. programs: name of the host -> its mooncake-preflight, a script."""
    for key in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    PRIVILEGE_FOLDER.mkdir(exist_ok=True)
    bridge = f"pf{os.getpid()}"
    made = Hosts(folder / "ssh_config", {name: f"{bridge}-{name}" for name in programs})
    made.config.write_text(
        "".join(f"Host {name}\n HostName {made.address(name)}\n" for name in programs)
        + f"Host *\n Port {PORT}\n IdentityFile {folder}/user\n IdentitiesOnly yes\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    with ExitStack() as stack:
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, (name, namespace) in enumerate(made.namespaces.items()):
            _run("ip", "netns", "add", namespace)
            stack.callback(_run, "ip", "netns", "del", namespace)
            link, address = f"{bridge}.{number}", made.address(name)
            peer = ("peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "add", link, "master", bridge, "type", "veth", *peer)
            _run("ip", "link", "set", link, "up")
            _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", namespace, "route", "add", "default", "via", f"{NETWORK}.254")
            (folder / name).mkdir()
            executable(folder / name / "mooncake-preflight", programs[name])
            lines = [
                f"HostKey {folder}/host",
                f"AuthorizedKeysFile {folder}/user.pub",
                f"ListenAddress {address}:{PORT}",
                f"SetEnv PATH={folder / name}:/usr/bin:/bin",
            ]
            inside = ("nsenter", f"--net=/run/netns/{namespace}")
            stack.enter_context(server(folder / name / "sshd", lines, address, PORT, *inside))
        yield made


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


GB = 10**9


@given(st.integers(0, 40).map(lambda count: [f"n{number}" for number in range(count)]))
def test_each_pair_is_measured_once_and_no_node_twice_at_a_time(nodes: list[str]) -> None:
    plan = rounds(nodes)
    for pairs in plan:
        together = list(chain.from_iterable(pairs))
        assert len(together) == len(set(together))
    every = sorted(tuple(sorted(pair)) for pair in chain.from_iterable(plan))
    assert every == sorted(tuple(sorted(pair)) for pair in combinations(nodes, 2))
    assert len(plan) == (0 if not nodes else len(nodes) - 1 + len(nodes) % 2)


Speeds = Mapping[tuple[str, str], float | None]


@pytest.mark.parametrize(
    ("speeds", "slow", "status"),
    [
        ({("a", "b"): 10, ("a", "c"): 9, ("b", "c"): 11}, [], "pass"),
        # c is slow with everybody.
        ({("a", "b"): 10, ("a", "c"): 2, ("b", "c"): 2}, [("all transfers", "c")], "warn"),
        # Only a and b are slow, between them.
        ({("a", "b"): 2, ("a", "c"): 10, ("b", "c"): 10}, [("a and b", "a,b")], "warn"),
        # Of two nodes nobody knows who is slow.
        ({("a", "b"): 0.1}, [], "pass"),
        ({("a", "b"): 10, ("a", "c"): None, ("b", "c"): 10}, [], "unknown"),
    ],
)
def test_who_is_slow(speeds: Speeds, slow: list[tuple[str, str]], status: str) -> None:
    pairs = [
        MeasuredPair(
            *nodes, (rate or 0) * GB, (rate or 0) * GB * 1.5, "rdma", ("mlx5_0",), (),
            None if rate else FleetFinding("fleet.ssh", "unknown", "transfers"), nodes[0],
        )
        for nodes, rate in speeds.items()
    ]  # fmt: skip
    answer = pairs_answer(sorted({*chain.from_iterable(speeds)}), pairs)
    found = [
        (each.finding.subject, ",".join(each.nodes))
        for each in answer.findings
        if each.finding.check == "fleet.slow-transfers"
    ]
    assert found == slow
    assert answer.status == status
    if not slow and status == "pass":
        assert answer.findings == []


# Three that have Mooncake, one that has not.
ONE, TWO, THREE, WITHOUT = HOSTS = ("host1", "host2", "host3", "without")
TOOL = """#!/bin/sh
export {environment}
exec {python} -m mooncake_preflight "$@"
"""
QUICK = ("--budget", "8s", "--spend", "256mb")
# An unhindered link moves five times as many bytes a second, on two busy processors too.
SLOW_RATE, SLOW_BYTES_PER_SECOND = "320mbit", 40 * 10**6


def _tool(environment: Mapping[str, str]) -> str:
    text = " ".join(f"{name}='{value}'" for name, value in environment.items())
    return TOOL.format(environment=text, python=sys.executable)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The hosts, each a network namespace; what they ran is gone at the end."""
    mark = f"MARK_OF_FLEET_MEASURE={os.getpid()}"
    name, _, value = mark.partition("=")
    loads = install_release("0.3.13.post1").environment({})
    with_library = {name: value, "PYTHONPATH": f"{ROOT}:{loads['PYTHONPATH']}"}
    if "LD_LIBRARY_PATH" in loads:
        with_library["LD_LIBRARY_PATH"] = loads["LD_LIBRARY_PATH"]
    programs = dict.fromkeys(HOSTS, _tool(with_library))
    programs[WITHOUT] = _tool({"PYTHONPATH": str(ROOT), name: value})
    with hosts(tmp_path_factory.mktemp("hosts"), programs) as running:
        yield running
        # One that serves ends by itself, soon after ssh to it was broken off.
        patience = time.monotonic() + 20
        while processes_of(mark) and time.monotonic() < patience:
            time.sleep(0.2)
        assert processes_of(mark) == []


REASON = why_no_hosts() or why_no_wheel()


def between_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that runs the real library between namespaces."""
    skip = pytest.mark.skipif(bool(REASON), reason=str(REASON))
    marked: Callable[..., None] = pytest.mark.fleet(pytest.mark.real(skip(test)))
    return marked


def _slow_hosts(answer: dict[str, Any]) -> list[str]:
    """The hosts that are slow with all others."""
    return [
        one["nodes"]["set"]
        for one in answer["findings"]
        if one["check"] == "fleet.slow-transfers" and "all transfers" in json.dumps(one)
    ]


@between_hosts
def test_the_host_with_a_slow_link_is_named(made: Hosts) -> None:
    """Each pair of three is measured; the host whose link tc slows is the slow one, and alone."""
    with made.slow(TWO, SLOW_RATE):
        answer = _ask("measure", made, ONE, TWO, THREE, words=QUICK)
    pairs = {frozenset((one["serving"], one["asking"])): one for one in answer["answer"]["pairs"]}
    assert set(pairs) == {frozenset(pair) for pair in combinations((ONE, TWO, THREE), 2)}
    for both, pair in pairs.items():
        assert pair["transport"] == "tcp"
        slower = min(pair["write_bytes_per_second"], pair["read_bytes_per_second"])
        assert (TWO in both) == (slower < 1.5 * SLOW_BYTES_PER_SECOND), pair
    assert _slow_hosts(answer) == [TWO]
    assert answer["exit_code"] == 1


@between_hosts
def test_a_host_without_the_library_is_named(made: Hosts) -> None:
    answer = _ask("measure", made, ONE, WITHOUT, words=QUICK)
    assert answer["exit_code"] == 3
    (pair,) = answer["answer"]["pairs"]
    assert pair["write_bytes_per_second"] is None
    assert "mooncake" in pair["reason"].lower()
    assert [one["nodes"]["set"] for one in answer["findings"]] == [WITHOUT]


@between_hosts
def test_what_runs_is_told_once_for_all_nodes(made: Hosts, tmp_path: Path) -> None:
    """Two nodes are this machine: its client has gone over to TCP, which both say as one finding. A
    launch is sent along; no process here is its server."""
    store = Store(install_release("0.3.13.post1"), tmp_path)
    try:
        store.start_client({}, "--global_segment_size=16MB", "--protocol=rdma")
        answer = _ask("observe", made, ONE, TWO)
        assert {one["check"]: one["status"] for one in answer["findings"]} == {
            "observe.transport": "warn",
            # The master is in another network than the hosts.
            "observe.store-pool": "unknown",
        }
        assert [one["nodes"]["count"] for one in answer["findings"]] == [2, 2]
        assert all(one["programs"] >= 2 for one in answer["answer"]["nodes"])
        launch = tmp_path / "launch.sh"
        launch.write_text("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B\n")
        answer = _ask("observe", made, ONE, words=(str(launch),))
        assert "observe.launch" in {one["check"] for one in answer["findings"]}
    finally:
        store.stop()


def _ask(name: str, made: Hosts, *names: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """The answer of ``fleet NAME`` over some hosts, which has its exit code."""
    where = ["--nodes", ",".join(names), f"--ssh-options=-F{made.config}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_preflight", "fleet", name, *where, *words],
        capture_output=True, text=True, timeout=240, cwd=ROOT,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    schema = ROOT / f"preflight/report/schemas/fleet-{name}-v1.schema.json"
    valid(answer, json.loads(schema.read_text()))
    assert done.returncode == answer["exit_code"], done.stderr
    return answer
