"""Ports, addresses and services of a launch, against real sockets and against recorded hosts."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from checks.framework.finding import Finding, Status
from checks.framework.needs import BoundPort, LaunchNeeds, ProcessNeeds, RdmaUse, Service
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.run_checks.facts import Facts, read_facts
from tests.checks.launches import facts_of, findings, launch


def _ports(*numbers: int | Unknown) -> LaunchNeeds:
    ports = tuple(
        BoundPort("HTTP port", number, f"p{i}", "--port") for i, number in enumerate(numbers)
    )
    return launch()._replace(ports=ports)


def _of_range(root: Path, span: str, reserved: str, port: int = 30000) -> Finding:
    """Judge one port against the range of outgoing connections of a host."""
    folder = root / "proc/sys/net/ipv4"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ip_local_port_range").write_text(span)
    (folder / "ip_local_reserved_ports").write_text(reserved)
    needs = _ports(port)
    (found,) = findings(facts_of(root, "network", needs=needs), needs, "network.port-range")
    return found


def test_a_port_that_a_server_listens_on_is_taken() -> None:
    """Tried for real: the listener here is what the launch would run into."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        needs = _ports(taken)
        found = findings(facts_of("/", "network", needs=needs), needs, "network.port-taken")
        assert [finding.status for finding in found] == [Status.FAIL]
        assert found[0].have == "EADDRINUSE"
    again = findings(facts_of("/", "network", needs=needs), needs, "network.port-taken")
    assert [finding.status for finding in again] == [Status.PASS]


@pytest.mark.parametrize(
    ("number", "answer", "expected"),
    [
        (80, {"free": False, "errno": "EACCES"}, Status.FAIL),
        (8080, {"free": False, "errno": "ENOBUFS"}, Status.UNKNOWN),
        (8080, {}, Status.UNKNOWN),
        (0, {"free": True}, Status.FAIL),
        (70000, {"free": True}, Status.FAIL),
        (Unknown("$PORT is not set"), {"free": True}, Status.UNKNOWN),
    ],
)
def test_what_else_can_come_of_a_port(
    tmp_path: Path, number: int | Unknown, answer: object, expected: Status
) -> None:
    (tmp_path / "calls.json").write_text(json.dumps({f"network.bind {number}": answer}))
    needs = _ports(number)
    found = findings(facts_of(tmp_path, "network", needs=needs), needs, "network.port-taken")
    assert [finding.status for finding in found] == [expected]


@pytest.mark.parametrize(
    ("span", "reserved", "expected"),
    [
        ("32768\t60999\n", "\n", Status.PASS),
        ("10000\t60999\n", "\n", Status.WARN),
        ("10000\t60999\n", "8000,29990-30010\n", Status.PASS),
        ("nonsense", "\n", Status.UNKNOWN),
        ("10000\t60999\n", "x-y\n", Status.UNKNOWN),
    ],
)
def test_a_port_inside_the_range_of_outgoing_connections(
    tmp_path: Path, span: str, reserved: str, expected: Status
) -> None:
    assert _of_range(tmp_path, span, reserved).status is expected


@pytest.mark.parametrize("port", [50051, 55051])
def test_a_stock_kernels_range_is_a_note_for_whatever_port(tmp_path: Path, port: int) -> None:
    """The default's risk is another port's: one is no warning and the other none either."""
    stock = _of_range(tmp_path, "32768\t60999\n", "8000\n", port)
    assert stock.status is Status.PASS
    assert f"ip_local_reserved_ports=8000,{port}" in stock.text
    assert _of_range(tmp_path, "32768\t65000\n", "8000\n", port).status is Status.WARN


def _advertising(name: str | Unknown) -> LaunchNeeds:
    service = Service("advertised", name, None, "", "server", "MOONCAKE_LOCAL_HOSTNAME", True)
    return launch()._replace(services=(service,))


ADDRESSES = [
    {"interface": "lo", "address": "127.0.0.1", "up": True},
    {"interface": "eth0", "address": "10.0.0.1", "up": True},
    {"interface": "eth1", "address": "10.0.1.1", "up": False},
]


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [
        (["10.0.0.1"], Status.PASS),
        (["10.0.1.1"], Status.FAIL),  # its interface is down
        (["10.0.0.2"], Status.FAIL),  # another host's
        (["127.0.1.1", "10.0.0.1"], Status.WARN),  # as installers write it into /etc/hosts
        ([], Status.UNKNOWN),
    ],
)
def test_the_name_that_peers_connect_to(
    tmp_path: Path, resolved: list[str], expected: Status
) -> None:
    calls = {"network.addresses": ADDRESSES, "services.resolve gpu1": resolved}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    needs = _advertising("gpu1")
    facts = facts_of(tmp_path, "network", "services", needs=needs)
    found = findings(facts, needs, "network.advertised-address")
    assert [finding.status for finding in found] == [expected]


def test_the_addresses_of_this_machine_hold_its_loopback() -> None:
    addresses = facts_of("/", "network").network.addresses
    assert not isinstance(addresses, Unknown)
    assert "127.0.0.1" in {entry.address for entry in addresses}


def _store(**other: object) -> LaunchNeeds:
    client = ProcessNeeds("client", "mooncake_client", {})._replace(**other)  # type: ignore[arg-type]
    return launch((), client)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("TCP: inuse 5 orphan 0 tw 14115 alloc 7 mem 1\n", Status.PASS),
        ("TCP: inuse 5 orphan 0 tw 14116 alloc 7 mem 1\n", Status.WARN),  # half of 28 232
        ("TCP: inuse 5 orphan 0 tw\n", Status.UNKNOWN),
    ],
)
def test_ports_that_rest(tmp_path: Path, content: str, expected: Status) -> None:
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("32768 60999")
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/net/sockstat").write_text(content)
    facts = facts_of(tmp_path, "network")
    assert [f.status for f in findings(facts, _store(), "network.time-wait")] == [expected]
    rdma = _store(rdma=RdmaUse((), "launch.sh"))
    no_store = launch((), ProcessNeeds("rank 0", "sglang", {}))
    for needs in (rdma, no_store):
        assert [f.status for f in findings(facts, needs, "network.time-wait")] == [Status.SKIP]


def _needs(
    kind: str, host: str | Unknown, port: int | None, path: str = "", *, own: bool = False
) -> LaunchNeeds:
    service = Service(kind, host, port, path, "server", "launch.sh:1", own)
    return launch()._replace(services=(service,))


class _Handler(BaseHTTPRequestHandler):
    """Answers as a metadata server, a master's admin port, and as neither, by path."""

    ANSWERS: ClassVar = {
        "/metadata?key=mooncake-preflight": (404, "metadata not found"),
        "/other?key=mooncake-preflight": (404, "Not Found"),
        "/index?key=mooncake-preflight": (200, "<html>metadata</html>"),
        "/token?key=mooncake-preflight": (401, "Unauthorized"),
        "/health": (200, '{"status":"ok","role":"leader","service_ready": true}'),
    }

    def do_GET(self) -> None:
        status, body = self.ANSWERS.get(self.path, (500, ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("metadata-http", "/metadata", Status.PASS),
        ("metadata-http", "/other", Status.FAIL),
        # Any web server says 200 to something: that is no metadata server.
        ("metadata-http", "/index", Status.FAIL),
        ("metadata-http", "/token", Status.FAIL),
    ],
)
def test_what_answers_over_http_is_asked_what_it_is(
    http_port: int, kind: str, path: str, expected: Status
) -> None:
    needs = _needs(kind, "127.0.0.1", http_port, path)
    found = findings(facts_of("/", "services", needs=needs), needs, "service.reachable")
    assert [finding.status for finding in found] == [expected]


def test_a_port_where_nothing_listens_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for kind in ("master", "metadata-http", "metadata-etcd", "worker"):
        needs = _needs(kind, "127.0.0.1", port)
        found = findings(facts_of("/", "services", needs=needs), needs, "service.reachable")
        assert [finding.status for finding in found] == [Status.FAIL]
        assert "ECONNREFUSED" in found[0].text


def test_something_that_speaks_no_http_is_no_metadata_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        needs = _needs("metadata-http", "127.0.0.1", server.getsockname()[1])
        threading.Thread(target=_says_no_http, args=(server,), daemon=True).start()
        found = findings(facts_of("/", "services", needs=needs), needs, "service.reachable")
    assert [finding.status for finding in found] == [Status.FAIL]


def _says_no_http(server: socket.socket) -> None:
    for _ in range(2):  # to who asks whether it is open, and to who asks for HTTP
        connection, _address = server.accept()
        with connection:
            connection.sendall(b"RFB 003.008\n")


@pytest.mark.parametrize("kind", ["metadata-http", "master-admin"])
def test_how_long_a_service_is_waited_for_follows_the_time_limit(kind: str) -> None:
    """What is open and silent may be slow: it is no failure, and the limit is the one asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        needs = _needs(kind, "127.0.0.1", server.getsockname()[1], "/health")
        facts = read_facts(Root("/"), needs, 1.5, topics=("services",))
        (found,) = findings(facts, needs, "service.reachable")
    assert found.status is Status.UNKNOWN
    assert "no answer within 0.3" in found.text


def _recorded(tmp_path: Path, calls: dict[str, object], needs: LaunchNeeds) -> Facts:
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    return facts_of(tmp_path, "services", needs=needs)


SERVICE_READY = '{{"status":"ok","service_ready":{}}}'.format


@pytest.mark.parametrize(("tried", "expected"), [(2.0, Status.UNKNOWN), (4.5, Status.FAIL)])
def test_who_is_slow_is_not_dead_before_mooncake_gives_it_up(
    tmp_path: Path, tried: float, expected: Status
) -> None:
    refused = {"open": False, "error": "timeout", "text": "timed out", "timeout": tried}
    needs = _needs("master", "10.0.0.9", 50051)
    facts = _recorded(tmp_path, {"services.connect 10.0.0.9 50051": refused}, needs)
    (found,) = findings(facts, needs, "service.reachable")
    assert found.status is expected


@pytest.mark.parametrize(
    ("kind", "call", "answer", "expected"),
    [
        # With Mooncake's own client.
        ("master", "master m 1", {"code": 0}, Status.PASS),
        ("master", "master m 1", {"code": -600}, Status.FAIL),
        ("master", "master m 1", {"timeout": 8.0}, Status.UNKNOWN),  # slow, or never answers
        # Without Mooncake here nobody can ask: an open port alone is no master.
        ("master", "master m 1", {"error": "ModuleNotFoundError: mooncake"}, Status.UNKNOWN),
        # "status" is always ok on a master: a standby says so too.
        ("master-admin", "http m 1 /health", SERVICE_READY("true"), Status.PASS),
        ("master-admin", "http m 1 /health", SERVICE_READY("false"), Status.FAIL),
        ("master-admin", "http m 1 /health", "OK", Status.FAIL),
    ],
)
def test_a_master_is_asked_in_its_own_words(
    tmp_path: Path, kind: str, call: str, answer: object, expected: Status
) -> None:
    reply = {"status": 200, "body": answer} if isinstance(answer, str) else answer
    calls: dict[str, object] = {"services.resolve m": ["10.0.0.9"], f"services.{call}": reply}
    calls["services.connect m 1"] = {"open": True}
    needs = _needs(kind, "m", 1)
    found = findings(_recorded(tmp_path, calls, needs), needs, "service.reachable")
    assert [finding.status for finding in found] == [expected]


@pytest.mark.parametrize(
    ("host", "port", "resolved", "hosts", "expected"),
    [
        ("m", 50051, ["10.0.0.9"], 2, Status.PASS),
        ("m", 50051, ["127.0.0.1"], 1, Status.PASS),
        ("m", 50051, ["127.0.0.1"], 2, Status.WARN),
        ("m", None, ["10.0.0.9"], 1, Status.FAIL),
        ("m", 50051, {"unknown": "gaierror: [Errno -2] Name or service not known"}, 1, Status.FAIL),
        ("m", 50051, {"unknown": "not in this capture"}, 1, Status.UNKNOWN),
        (Unknown("$MASTER is not set"), 50051, ["10.0.0.9"], 1, Status.UNKNOWN),
    ],
)
def test_addresses(
    tmp_path: Path,
    host: str | Unknown,
    port: int | None,
    resolved: object,
    hosts: int,
    expected: Status,
) -> None:
    needs = _needs("metadata-etcd", host, port)._replace(hosts=hosts)
    facts = _recorded(tmp_path, {"services.resolve m": resolved}, needs)
    found = findings(facts, needs, "service.address")
    assert [finding.status for finding in found] == [expected]


def test_a_real_name_that_cannot_exist_fails() -> None:
    """RFC 2606: .invalid never resolves."""
    needs = _needs("master", "master.invalid", 50051)
    found = findings(facts_of("/", "services", needs=needs), needs, "service.address")
    assert [finding.status for finding in found] == [Status.FAIL]
