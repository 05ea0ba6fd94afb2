"""Policy routing: what leads out of an interface for a source, by rules and tables."""

import ipaddress
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from checks.framework.root import CALLS_FILE, Root
from checks.framework.unknown import Unknown
from checks.network.facts import RoutingRule, RoutingTables, TableRoute, exits, read_routing
from tests.paths import ROOT
from tests.tables import each_row

LOCAL, MAIN = (
    RoutingRule(4, number, 1, table, False, "", "", "", "", None, None, None, ())
    for number, table in ((0, 255), (32766, 254))
)
SOURCE, OUT = "10.1.0.7", "eth1"
# The usual thing on a host of several rails: each address has a table of its own.
OWN = MAIN._replace(priority=100, table=101, source=f"{SOURCE}/32")


def to(table: int, destination: str, interface: str = OUT, type_: int = 1) -> TableRoute:
    return TableRoute(4, table, type_, destination, "10.1.0.254", interface)


LINK, ELSEWHERE = to(254, "10.1.0.0/24"), to(254, "0.0.0.0/0", "eth0")
RAILS = to(101, "10.0.0.0/8")
REJECTED = to(101, "10.5.0.0/16", "", 7)

CASES = [
    # Nobody's rules: the main table, out of this interface alone.
    ((), (), ["10.1.0.0/24"]),
    ((OWN,), (RAILS,), ["10.0.0.0/8"]),
    # What the table leaves open is the main table's.
    ((OWN,), (to(101, "10.2.0.0/16"),), ["10.2.0.0/16", "10.1.0.0/24"]),
    ((OWN._replace(source="10.2.0.7/32"),), (RAILS,), ["10.1.0.0/24"]),
    ((OWN._replace(source="10.2.0.7/32", invert=True),), (RAILS,), ["10.0.0.0/8"]),
    # A table that leads out of another interface is passed over.
    ((OWN,), (to(101, "0.0.0.0/0", "eth0"),), ["10.1.0.0/24"]),
    ((OWN._replace(source="", oif=OUT),), (RAILS,), ["10.0.0.0/8"]),
    ((OWN._replace(source="", oif="eth2"),), (RAILS,), ["10.1.0.0/24"]),
    # No lookup of an RDMA device has a mark, a protocol, or a port.
    ((OWN._replace(mark=(1, 0xFF)),), (RAILS,), ["10.1.0.0/24"]),
    ((OWN._replace(other=(22,)),), (RAILS,), ["10.1.0.0/24"]),
    ((OWN._replace(target="10.2.0.0/16"),), (RAILS,), ["10.2.0.0/16", "10.1.0.0/24"]),
    # A reject of a part takes it from the whole; a more specific route is not touched by it.
    ((OWN,), (to(101, "10.4.0.0/15"), REJECTED), ["10.4.0.0/16", "10.1.0.0/24"]),
    ((OWN,), (to(101, "10.5.1.0/24"), REJECTED), ["10.5.1.0/24", "10.1.0.0/24"]),
    ((OWN._replace(action=6),), (), []),
    ((OWN._replace(action=6, target="10.1.0.0/25"),), (), ["10.1.0.128/25"]),
    ((OWN._replace(action=3),), (), ["10.1.0.0/24"]),
    ((OWN._replace(action=2, goto=32766),), (RAILS,), ["10.1.0.0/24"]),
    # A throw sends the lookup to the next rule, as does a default that is suppressed.
    ((OWN,), (RAILS, to(101, "10.1.0.0/16", "", 9)), ["10.0.0.0/16", "10.1.0.0/24"]),
    ((OWN._replace(suppress_prefix=0),), (to(101, "0.0.0.0/0"),), ["10.1.0.0/24"]),
]


@each_row(("rules", "routes", "leads"), CASES)
def test_what_leads_out(
    rules: tuple[RoutingRule, ...], routes: tuple[TableRoute, ...], leads: list[str]
) -> None:
    routing = RoutingTables((LOCAL, *rules, MAIN), (LINK, ELSEWHERE, *routes))
    found = exits(routing, SOURCE, OUT)
    assert not isinstance(found, Unknown)
    assert set(leads) <= set(found)
    if RAILS not in routes:  # else the rest of 10/8 stands in its pieces
        assert set(found) == set(leads)


@pytest.mark.parametrize("number", [13, 19, 20, 99])
def test_what_cannot_be_judged_is_unknown(number: int) -> None:
    """A VRF, a user's range, and whatever comes after today's kernels."""
    found = exits(RoutingTables((OWN._replace(other=(number,)), MAIN), (LINK, RAILS)), SOURCE, OUT)
    assert isinstance(found, Unknown)
    assert f"rule 100 has a selector that is not read ({number})" in found.reason


def test_a_capture_without_rules_says_so(tmp_path: Path) -> None:
    """Older captures have none: unknown, not a host without rules."""
    (tmp_path / CALLS_FILE).write_text("{}")
    found = read_routing(Root(f"{tmp_path}"))
    assert isinstance(found, Unknown)
    assert "not recorded" in found.reason


READ = """
import json, subprocess, sys
for command in sys.argv[1].split(";"):
    subprocess.run(command.split(), check=True)
from checks.network.calls import routes, rules
print(json.dumps({"routing.rules": rules(), "routing.routes": routes()}))
for target in sys.argv[3:]:
    asked = ["ip", "route", "get", target, "from", sys.argv[2], "oif", "eth1"]
    print(subprocess.run(asked, capture_output=True, text=True).stdout.partition("\\n")[0])
"""
COMMANDS = (
    "ip link set lo up;ip link add eth1 type veth peer name eth2;"
    "ip link set eth1 up;ip link set eth2 up;"
    f"ip addr add {SOURCE}/24 dev eth1;"
    "ip route add 10.0.0.0/8 via 10.1.0.254 dev eth1 table 101;"
    "ip route add unreachable 10.9.0.0/16 table 101;"
    f"ip rule add from {SOURCE} lookup 101 prio 100;"
    "ip rule add fwmark 0x10/0xff lookup 102 prio 90;"
    "ip rule add to 10.7.0.0/16 ipproto tcp dport 22 blackhole prio 80"
)


def can_make_namespaces() -> bool:
    programs = all(shutil.which(name) for name in ("unshare", "ip"))
    tried = ["unshare", "-rn", "ip", "link", "add", "eth1", "type", "veth"]
    return programs and subprocess.run(tried, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(socket, "AF_NETLINK") or not can_make_namespaces(),
    reason="needs iproute2, and a user who may make a network namespace with a veth pair",
)
def test_what_the_kernel_says(tmp_path: Path) -> None:
    """A namespace of its own with real rules and tables, read over netlink."""
    targets = ("10.2.0.1", "10.1.0.9", "10.7.0.1", "10.9.1.1", "11.0.0.1")
    words = ["unshare", "-rn", sys.executable, "-c", READ, COMMANDS, SOURCE, *targets]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    calls, *got = done.stdout.splitlines()
    (tmp_path / CALLS_FILE).write_text(calls)
    routing = read_routing(Root(f"{tmp_path}"))
    assert isinstance(routing, RoutingTables), calls
    priorities = [rule.priority for rule in routing.rules if rule.family == 4]
    assert priorities == [0, 80, 90, 100, 32766, 32767]
    found = exits(routing, SOURCE, OUT)
    assert not isinstance(found, Unknown), found.reason
    networks = [ipaddress.ip_network(one) for one in found]
    leads = [any(ipaddress.ip_address(one) in net for net in networks) for one in targets]
    assert leads == [True, True, True, False, False]
    # What no table leads to, and what one rejects, is taken to be on the link: seen with 6.x, as
    # ip_route_output_key_hash_rcu does where a way out is given.
    assert ["via" in line for line in got] == leads, got
    assert exits(routing, "10.1.0.8", OUT) == ("10.1.0.0/24",)
