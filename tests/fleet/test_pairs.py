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

from preflight.cli.fleet_pairs_ends import pair_connect
from preflight.fleet.pairs.end import (
    BUFFER_BYTES,
    SMALL_BYTES,
    TALK,
    EndFacts,
    Endpoint,
    PairError,
    PairRequest,
    checked,
    receive,
    send,
)
from preflight.fleet.pairs.outcome import (
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
    Writes,
    pair_object,
    read_answer,
)
from preflight.verbs.ctypes_objects import (
    LID_OFFSET,
    QPN_OFFSET,
    Attributes,
    Completion,
    InitAttributes,
    RegionFields,
    WorkRequest,
)
from preflight.verbs.ctypes_objects import Path as Path_
from tests.paths import ROOT
from tests.valid import valid

Kind = TypeVar("Kind", bound=tuple[Any, ...])
SCHEMA = json.loads((ROOT / "preflight/schemas/pair-v1.schema.json").read_text())
A, B = PairPort("mlx5_0", 1, "10.0.0.1", 4096), PairPort("mlx5_1", 1, "10.0.1.2", 1024)
RTR = "ibv_modify_qp to RTR"


def test_a_failure_names_what_was_returned() -> None:
    timed_out = Failure(THERE, VERBS, RTR, errno.ETIMEDOUT)
    assert timed_out.text == f"{RTR} there: Connection timed out [110]"
    retries = Failure(HERE, WRITE, "write", 12, 64)
    assert retries.text == "transport retry counter exceeded (12) on a write of 64 B"


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


@given(ANYTHING | ENDS.map(lambda one: one._asdict()))
def test_what_is_no_end_is_refused(value: Any) -> None:
    """Whatever the other side sends, it is an end within its bounds or a PairError."""
    try:
        end = checked(heard({"end": value}, PairRequest).end)
    except PairError:
        return
    assert end._asdict() == value
    assert len(bytes.fromhex(end.gid)) == 16


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["ports", "over"]), ANYTHING))
def test_what_are_no_ports_is_refused(said: dict[str, Any]) -> None:
    try:
        found = heard(said, EndFacts)
    except PairError:
        return
    assert found.ports == ()


WORKS = Writes(3.2e-6, 9e-6, None, BUFFER_BYTES)
NO_ANSWER = Failure(HERE, WRITE, "write", 12, SMALL_BYTES)
LOST = Writes(failure=NO_ANSWER, arrived_bytes=0)
UNANSWERED = LOST._replace(arrived_bytes=SMALL_BYTES)
LARGE = Failure(HERE, WRITE, "write", 12, BUFFER_BYTES)
LARGE_LOST = Writes(3e-6, None, LARGE, SMALL_BYTES)
REFUSED = Writes(3e-6, None, Failure(HERE, WRITE, "write", 9, BUFFER_BYTES), SMALL_BYTES)
NOT_CONNECTED = Writes(failure=Failure(HERE, VERBS, RTR, errno.ETIMEDOUT))
TRIED = (
    TriedPair(A, A, WORKS, WORKS._replace(small_seconds=4e-6)),
    TriedPair(A, B, LOST, LOST),
)

DIRECTIONS = [
    (WORKS, WORKS, ()),
    (WORKS, None, ()),
    # What does not arrive one way cannot be acknowledged the other way either.
    (LOST, UNANSWERED, (OUT,)),
    (UNANSWERED, LOST, (BACK,)),
    (UNANSWERED, UNANSWERED, (OUT, BACK)),
    (LOST, LOST, (OUT, BACK)),
    (LARGE_LOST, WORKS, (OUT,)),
    (WORKS, LARGE_LOST, (BACK,)),
    (REFUSED, REFUSED, (OUT, BACK)),
    (NOT_CONNECTED, None, (OUT,)),
    (LOST._replace(arrived_bytes=None), LOST, (OUT, BACK)),
]


@pytest.mark.parametrize(("out", "back", "ways"), DIRECTIONS)
def test_which_way_is_broken(out: Writes, back: Writes | None, ways: tuple[str, ...]) -> None:
    """A write needs both directions; whether it arrived tells which of them fails it."""
    tried = TriedPair(A, B, out, back)
    assert tuple(tried.broken) == ways
    assert tried.works is (ways == ())
    failed = out.failure or (back.failure if back else None)
    assert not ways or failed is not None
    assert set(tried.broken.values()) <= {failed.text if failed else ""}


def test_both_ends_of_a_broken_pair_are_named() -> None:
    answer = PairAnswer("10.9.0.2:7471", 0.0004, TRIED, "", "refused")
    whole = pair_object(answer)
    valid(json.loads(json.dumps(whole)), SCHEMA)
    assert [one["failure"] and one["failure"]["number"] for one in whole["pairs"]] == [None, 12]
    assert (whole["status"], whole["pairs"][1]["there"]["gid"]) == ("fail", "10.0.1.2")
    assert read_answer(whole) == answer


@pytest.mark.parametrize(
    ("tried", "closed", "error", "status"),
    [
        (TRIED[:1], "", "", "pass"),
        (TRIED, "", "", "fail"),
        (TRIED, "", "the other side is gone", "fail"),
        (TRIED[:1], "", "the other side is gone", "unknown"),
        (TRIED[:1], "refused", "", "fail"),
        ((), "", "", "unknown"),
        ((TRIED[0]._replace(back=LARGE_LOST),), "", "", "fail"),
    ],
)
def test_the_verdict(tried: tuple[TriedPair, ...], closed: str, error: str, status: str) -> None:
    """What was not tried never passes."""
    assert PairAnswer("peer", None, tried, error, closed).status == status


def test_without_rdma_tcp_is_all() -> None:
    """A launch over TCP passes where TCP connects, and no RDMA port is asked for."""
    answer = PairAnswer("peer", 0.001, (), "", over="tcp")
    assert answer.status == "pass"
    assert answer._replace(connect_seconds=None).status == "unknown"
    assert answer._replace(closed="refused").status == "fail"
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
    given_words = ["--token", token, "--wait", "0", *words, "127.0.0.1", str(port)]
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
    code, answer = connect(port, "right")
    assert "no RDMA port with a GID" in answer["error"]
    assert answer["connect_seconds"] > 0
    assert (code, answer["closed"]) == (3, "")
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
