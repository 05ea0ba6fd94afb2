"""The two ends of a pair where there is no RDMA: what they say to each other, and why it failed."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from preflight.cli.fleet_pairs_connect import pair_connect
from preflight.fleet.pairs.answer import pair_object, pair_text
from preflight.fleet.pairs.cause import broken, cause, cause_of, failure_text, reasons
from preflight.fleet.pairs.records import (
    BACK,
    HERE,
    OUT,
    THERE,
    VERBS,
    WRITE,
    Failure,
    PairAnswer,
    PairPort,
    TriedPair,
    TriedPort,
    Writes,
)
from preflight.fleet.pairs.talk import (
    TALK,
    EndFacts,
    PairError,
    PairRequest,
    checked,
    receive,
    send,
)
from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Endpoint
from preflight.fleet.rails.lanes import Reach, Way
from preflight.verbs.objects import (
    LID_OFFSET,
    QPN_OFFSET,
    Attributes,
    Completion,
    InitAttributes,
    RegionFields,
    WorkRequest,
)
from preflight.verbs.objects import Path as Path_
from tests.paths import ROOT
from tests.valid import valid

Kind = TypeVar("Kind", bound=tuple[Any, ...])
SCHEMA = json.loads((ROOT / "preflight/schemas/pair-v1.schema.json").read_text())
A, B = PairPort("mlx5_0", 1, "10.0.0.1", 4096), PairPort("mlx5_1", 1, "10.0.1.2", 1024)
DIRECT, UNROUTED = Way(Reach.DIRECT), Way(Reach.UNROUTED, "no route between X and Y")
RTR = "ibv_modify_qp to RTR"

CAUSES = [
    (Failure(HERE, WRITE, "write", 9, BUFFER_BYTES), DIRECT, "4096 B here, 1024 B there"),
    (Failure(HERE, WRITE, "write", 12, SMALL_BYTES), UNROUTED, "no route between X and Y"),
    (Failure(HERE, WRITE, "write", 12, SMALL_BYTES), DIRECT, "UDP port 4791"),
    (Failure(HERE, WRITE, "write", 12, SMALL_BYTES), Way(Reach.ROUTED), "the router"),
    (Failure(HERE, WRITE, "write", 12, BUFFER_BYTES), DIRECT, "large ones do not"),
    (Failure(HERE, WRITE, "write", None, SMALL_BYTES), DIRECT, "nothing comes back"),
    (Failure(HERE, WRITE, "write", 10, SMALL_BYTES), DIRECT, "does not allow writes to its memory"),
    (Failure(HERE, VERBS, RTR, errno.ETIMEDOUT), DIRECT, "10.0.1.2 on the link of mlx5_0"),
    (Failure(THERE, VERBS, RTR, errno.ETIMEDOUT), DIRECT, "10.0.0.1 on the link of mlx5_1"),
    (Failure(HERE, VERBS, RTR, errno.ENETUNREACH), UNROUTED, "no route to 10.0.1.2 out of mlx5_0"),
    (Failure(THERE, VERBS, RTR, errno.EINVAL), DIRECT, "10.0.0.1 from 10.0.1.2"),
    (Failure(THERE, VERBS, "ibv_reg_mr", errno.ENOMEM), DIRECT, "mlx5_1 there: memlock"),
    (Failure(HERE, VERBS, "ibv_open_device", errno.EACCES), DIRECT, "no permission for mlx5_0"),
]


@pytest.mark.parametrize(("failure", "facts", "words"), CAUSES)
def test_the_likely_cause(failure: Failure, facts: Way, words: str) -> None:
    """The side that is to be looked at is the one that failed."""
    assert words in cause(failure, A, B, facts)


def test_a_failure_names_what_was_returned() -> None:
    timed_out = Failure(THERE, VERBS, RTR, errno.ETIMEDOUT)
    assert failure_text(timed_out) == f"{RTR} there: Connection timed out [110]"
    retries = Failure(HERE, WRITE, "write", 12, 64)
    assert failure_text(retries) == "transport retry counter exceeded (12) on a write of 64 B"


ENDS = st.builds(
    Endpoint,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.sampled_from([256, 512, 1024, 2048, 4096]),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
)


@given(ENDS)
def test_an_end_arrives_as_it_was_sent(end: Endpoint) -> None:
    stream = io.BytesIO()
    send(stream, PairRequest(end=end))
    assert checked(heard(json.loads(stream.getvalue()), PairRequest).end) == end


def heard(said: Any, kind: type[Kind]) -> Kind:
    """What the other side said, as it is read."""
    return receive(io.BytesIO(json.dumps(said).encode() + b"\n"), kind)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(ANYTHING | ENDS.map(list).flatmap(lambda one: st.permutations(one)))
def test_what_is_no_end_is_refused(value: Any) -> None:
    """Whatever the other side sends, it is an end within its bounds or a PairError."""
    try:
        end = checked(heard({"end": value}, PairRequest).end)
    except PairError:
        return
    assert list(end) == value
    assert len(bytes.fromhex(end.gid)) == 16


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["rails", "routes"]), ANYTHING))
def test_what_are_no_ports_is_refused(said: dict[str, Any]) -> None:
    try:
        found = heard(said, EndFacts)
    except PairError:
        return
    assert found.used == []


WORKS = Writes(3.2e-6, 9e-6, None, BUFFER_BYTES)
NO_ANSWER = Failure(HERE, WRITE, "write", 12, SMALL_BYTES)
LOST = Writes(failure=NO_ANSWER, arrived_bytes=0)
UNANSWERED = LOST._replace(arrived_bytes=SMALL_BYTES)
LARGE = Failure(HERE, WRITE, "write", 12, BUFFER_BYTES)
LARGE_LOST = Writes(3e-6, None, LARGE, SMALL_BYTES)
REFUSED = Writes(3e-6, None, Failure(HERE, WRITE, "write", 9, BUFFER_BYTES), SMALL_BYTES)
NOT_CONNECTED = Writes(failure=Failure(HERE, VERBS, RTR, errno.ETIMEDOUT))
TRIED = (
    TriedPair(A, A, DIRECT, WORKS, WORKS._replace(small_seconds=4e-6)),
    TriedPair(A, B, UNROUTED, LOST, LOST, "no way"),
)

DIRECTIONS = [
    (WORKS, WORKS, (), ""),
    (WORKS, None, (), ""),
    # What does not arrive one way cannot be acknowledged the other way either.
    (LOST, UNANSWERED, (OUT,), "from here to there: nothing arrives, and the other way it does"),
    (UNANSWERED, LOST, (BACK,), "from there to here: nothing arrives, and the other way it does"),
    (LOST, LOST, (OUT, BACK), "no way between the two ports: no route between X and Y"),
    (LARGE_LOST, WORKS, (OUT,), "from here to there: small packets arrive and large ones do not"),
    (WORKS, LARGE_LOST, (BACK,), "from there to here: small packets arrive and large ones"),
    (REFUSED, REFUSED, (OUT, BACK), "the path MTUs differ"),
    (NOT_CONNECTED, None, (OUT, BACK), "nobody answers for 10.0.1.2"),
    (LOST._replace(arrived_bytes=None), LOST, (OUT, BACK), "no way"),
]


@pytest.mark.parametrize(("out", "back", "ways", "words"), DIRECTIONS)
def test_which_way_is_broken(
    out: Writes, back: Writes | None, ways: tuple[str, ...], words: str
) -> None:
    """A write needs both directions; whether it arrived tells which of them fails it."""
    tried = TriedPair(A, B, UNROUTED, out, back)
    assert broken(tried) == tuple(reasons(tried)) == ways
    assert tried.works is (ways == ())
    assert cause_of(tried).startswith(words)
    assert bool(cause_of(tried)) is bool(ways)


def test_both_ends_of_a_broken_pair_are_named() -> None:
    answer = PairAnswer("10.9.0.2:7471", 0.0004, TRIED, (TriedPort(50051, None, "refused"),), "")
    text = pair_text(answer, lambda text, _: text, 100)
    assert text.splitlines() == [
        "FAIL: 10.9.0.2:7471: 1 of 2 pairs of ports write to each other, TCP in 400 us",
        "TCP port 50051: fail: refused",
        "here \\ there    mlx5_0    mlx5_1",
        "mlx5_0          4 us      broken",
        "mlx5_0 10.0.0.1 (path MTU 4096 B) to mlx5_1 10.0.1.2 (path MTU 1024 B)",
        "    transport retry counter exceeded (12) on a write of 64 B",
        "    back: transport retry counter exceeded (12) on a write of 64 B",
        "    no way",
        "    by addresses and routes: no route between X and Y",
    ]
    whole = pair_object(answer)
    valid(json.loads(json.dumps(whole)), SCHEMA)
    assert [one["failure"] and one["failure"]["number"] for one in whole["pairs"]] == [None, 12]


@pytest.mark.parametrize(
    ("tried", "ports", "error", "status"),
    [
        (TRIED[:1], (), "", "pass"),
        (TRIED, (), "", "fail"),
        (TRIED, (), "the other side is gone", "fail"),
        (TRIED[:1], (), "the other side is gone", "unknown"),
        (TRIED[:1], (TriedPort(1, None, "refused"),), "", "fail"),
        ((), (), "", "unknown"),
        ((TRIED[0]._replace(back=LARGE_LOST),), (), "", "fail"),
    ],
)
def test_the_verdict(
    tried: tuple[TriedPair, ...], ports: tuple[TriedPort, ...], error: str, status: str
) -> None:
    """What was not tried never passes."""
    assert PairAnswer("peer", None, tried, ports, error).status == status


def test_without_rdma_tcp_is_all() -> None:
    """A launch over TCP passes where TCP connects, and no RDMA port is asked for."""
    answer = PairAnswer("peer", 0.001, (), (), "", over="tcp")
    assert answer.status == "pass"
    assert answer._replace(connect_seconds=None).status == "unknown"
    closed = (TriedPort(15000, None, "refused", "engine", BACK),)
    assert answer._replace(ports=closed).status == "fail"
    text = pair_text(answer._replace(ports=closed), lambda text, _: text, 100)
    assert "TCP port 15000 (engine) of this node, from the other: fail: refused" in text
    valid(json.loads(json.dumps(pair_object(answer))), SCHEMA)


# offsetof() of infiniband/verbs.h of rdma-core 44, gcc on x86-64.
OFFSETS = [
    (Attributes.ah_attr, 56),
    (Attributes.pkey_index, 120),
    (Attributes.max_rd_atomic, 126),
    (Attributes.port_num, 129),
    (Attributes.timeout, 130),
    (Attributes.rnr_retry, 132),
    (Attributes.rate_limit, 136),
    (Path_.dlid, 24),
    (Path_.port_num, 30),
    (InitAttributes.cap, 32),
    (InitAttributes.qp_type, 52),
    (WorkRequest.remote_addr, 40),
    (WorkRequest.rkey, 48),
    (RegionFields.lkey, 36),
    (RegionFields.rkey, 40),
    (Completion.status, 8),
]


def test_structures_lie_as_the_header_has_them() -> None:
    """What soft-RoCE does not use, as the LID, no run in the lab would show."""
    assert [field.offset for field, _ in OFFSETS] == [offset for _, offset in OFFSETS]
    assert (QPN_OFFSET, LID_OFFSET) == (52, 34)
    assert (ctypes.sizeof(Path_), ctypes.sizeof(InitAttributes) >= 64) == (32, True)
    # The library writes and reads as much.
    assert (ctypes.sizeof(WorkRequest) >= 128, ctypes.sizeof(Completion) >= 48) == (True, True)


def has_rdma() -> bool:
    return any(Path("/sys/class/infiniband").glob("*"))


@pytest.fixture
def listener() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A real pair-listen on this machine's loopback, and its port."""
    command = [sys.executable, "-m", "preflight.cli.main", "fleet", "pair-listen"]
    command += ["--token", "right", "--seconds", "60", "--once"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert (said["protocol"], said["address"]) == (TALK, "127.0.0.1")
        yield process, said["port"]
    finally:
        process.kill()
        process.wait()


def connect(port: int, token: str, *words: str) -> tuple[int, Any]:
    given_words = ["--json", "--token", token, "--wait", "0", *words, "127.0.0.1", str(port)]
    done = CliRunner().invoke(pair_connect, given_words, standalone_mode=False)
    answer = json.loads(done.output)
    valid(answer, SCHEMA)
    return done.return_value, answer


@pytest.mark.slow
@pytest.mark.skipif(has_rdma(), reason="this machine has an RDMA device: pairs are tried")
def test_two_ends_without_rdma(listener: tuple[subprocess.Popen[str], int]) -> None:
    """Strangers are turned away and change nothing; a real other side learns what is missing."""
    process, port = listener
    for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100 + b"\n", b'{"token": "\\ud800"}\n'):
        with socket.create_connection(("127.0.0.1", port), 30) as stranger:
            stranger.sendall(junk)
    code, answer = connect(port, "wrong")
    assert (code, "token" in answer["error"], answer["pairs"]) == (3, True, [])
    code, answer = connect(port, "right", "--tcp", str(port), "--tcp", "1")
    assert "no RDMA port with a GID" in answer["error"]
    assert answer["connect_seconds"] > 0
    tried = [(one["port"], one["way"], one["error"] == "") for one in answer["ports"]]
    assert tried == [
        (port, "out", True),
        (port, "back", True),
        (1, "out", False),
        (1, "back", False),
    ]
    assert code == 2  # port 1
    process.wait(60)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, answer = connect(port, "right")
    assert (code, answer["status"]) == (3, "unknown")
    assert f"127.0.0.1:{port}" in answer["error"]


@pytest.mark.slow
def test_a_listener_ends_by_itself() -> None:
    """Nobody ever connects: after its seconds it is gone, with nothing wrong."""
    command = [sys.executable, "-m", "preflight.cli.main", "fleet", "pair-listen"]
    done = subprocess.run([*command, "--seconds", "1"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["token"]) == 32


@pytest.mark.slow
def test_an_address_of_somebody_else_is_a_usage_error() -> None:
    command = [sys.executable, "-m", "preflight.cli.main", "fleet", "pair-listen"]
    done = subprocess.run(
        [*command, "--address", "192.0.2.1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 64
    assert "--address 192.0.2.1" in done.stderr
