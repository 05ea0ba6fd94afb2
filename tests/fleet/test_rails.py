"""Which NIC reaches which: of two lanes, of kinds of nodes, of a fleet's real reports."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from checks.rdma.devices import ROCE_1, ROCE_2
from preflight.cli.fleet import rails
from preflight.cli.main import run
from preflight.fleet.rails import INFINIBAND, Lane, Reach, gid_network, rail_answer, way
from preflight.fleet.reports.answers import FleetAnswer
from preflight.fleet.reports.reading import ReportReader
from preflight.fleet.reports.rows import NodeRow
from preflight.fleet.reports.sources import FoundReport as Found
from tests.builders.synthetic import build_host, gpu_host
from tests.fleet.merge_fleets import LAUNCH, Change, Report, document, fleet_reports, write_lines
from tests.fleet.merge_fleets import rails as every_rail
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/rails-v1.schema.json").read_text())
FOUR = [f"gpu{number}" for number in range(1, 5)]


def lane(network: str, *exits: str, kind: str = ROCE_2, layer: str = "Ethernet") -> Lane:
    return Lane("mlx5_0", 1, layer, kind, network, exits)


IB = lane("fe80::", kind="IB", layer=INFINIBAND)
PAIRS = [
    (lane("10.0.0.0/24"), lane("10.0.0.0/24"), Reach.DIRECT),
    (lane("10.0.0.0/24"), lane("10.0.1.0/24"), Reach.UNROUTED),
    (lane("10.0.0.0/24", "10.0.0.0/8"), lane("10.0.1.0/24", "0.0.0.0/0"), Reach.ROUTED),
    (lane("10.0.0.0/24", "10.0.0.0/8"), lane("10.0.1.0/24"), Reach.UNROUTED),
    (lane("10.0.0.0/24", "10.0.1.0/25"), lane("10.0.1.0/24", "10.0.0.0/8"), Reach.UNROUTED),
    (lane("10.0.0.0/24"), lane("10.0.0.0/16"), Reach.UNKNOWN),
    (lane("10.0.0.0/24"), lane("fd00::/64", "::/0"), Reach.NONE),
    (lane("10.0.0.0/24"), lane("10.0.0.0/24", kind=ROCE_1), Reach.NONE),
    (
        lane("10.0.0.0/24", "0.0.0.0/0", kind=ROCE_1),
        lane("10.0.1.0/24", "0.0.0.0/0", kind=ROCE_1),
        Reach.NONE,
    ),
    (lane("10.0.0.0/24"), IB, Reach.NONE),
    (IB, IB, Reach.DIRECT),
    (IB, IB._replace(network="fe81::"), Reach.UNKNOWN),
    (lane("10.0.0.0/24"), lane("x")._replace(network=Unknown("not read")), Reach.UNKNOWN),
]


@each_row(("one", "other", "reach"), PAIRS)
def test_two_lanes(one: Lane, other: Lane, reach: Reach) -> None:
    assert way(one, other).reach is reach


NETWORKS = st.sampled_from(
    ["10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16", "10.1.0.0/16", "fd00::/64"]
)
LANES = st.builds(
    Lane,
    st.sampled_from(["mlx5_0", "mlx5_1"]),
    st.just(1),
    st.sampled_from(["Ethernet", INFINIBAND]),
    st.sampled_from([ROCE_1, ROCE_2]),
    NETWORKS | st.just(Unknown("not read")),
    st.lists(NETWORKS | st.just("0.0.0.0/0"), max_size=2).map(tuple),
)


@given(LANES, LANES)
def test_a_way_leads_back(one: Lane, other: Lane) -> None:
    """Whoever asks, the answer is the same."""
    assert way(one, other).reach is way(other, one).reach


@given(LANES, LANES)
def test_one_more_route_never_closes_a_way(one: Lane, other: Lane) -> None:
    before = way(one, other).reach
    wide = [end._replace(exits=(*end.exits, "0.0.0.0/0", "::/0")) for end in (one, other)]
    after = way(*wide).reach
    assert after is before or (before, after) == (Reach.UNROUTED, Reach.ROUTED)


@each_row(
    ("layer", "gid", "addresses", "network"),
    [
        ("Ethernet", "10.0.0.7", ["10.0.0.7/24"], "10.0.0.0/24"),
        ("Ethernet", "0000:0000:0000:0000:0000:ffff:0a00:0007", ["10.0.0.7/24"], "10.0.0.0/24"),
        ("Ethernet", "10.0.0.7", ["10.0.0.1/16", "10.0.0.7/31"], "10.0.0.6/31"),
        (INFINIBAND, "fe80:0000:0000:0000:0002:c903:00a1:b2c3", [], "fe80::"),
        (INFINIBAND, "fec0:0000:0000:0001:0002:c903:00a1:b2c3", [], "fec0:0:0:1::"),
        ("Ethernet", "fe80:0000:0000:0000:0002:c903:00a1:b2c3", [], Unknown("link-local")),
        ("Ethernet", "10.0.0.7", ["10.0.0.8/24"], Unknown("no interface")),
        ("Ethernet", "none", [], Unknown("no GID")),
    ],
)
def test_the_network_of_a_gid(
    layer: str, gid: str, addresses: list[str], network: str | Unknown
) -> None:
    found = gid_network(layer, gid, addresses)
    if isinstance(network, str):
        assert found == network
    else:
        assert isinstance(found, Unknown)
        assert network.reason in found.reason


def answer(nodes: str, changes: dict[str, Change] | None = None) -> FleetAnswer:
    """Of synthetic nodes: eight NICs each, in eight networks of their own, no route out."""
    return rail_answer(rows_of(fleet_reports(nodes, changes)), ())


def rows_of(reports: Sequence[Report]) -> list[NodeRow]:
    rows = [ReportReader().read(Found("r", 1, document(report))) for report in reports]
    assert all(isinstance(row, NodeRow) for row in rows)
    return [row for row in rows if isinstance(row, NodeRow)]


def found(seen: FleetAnswer) -> dict[tuple[str, str], set[str]]:
    """(check, status) -> the nodes that are named."""
    rows: dict[tuple[str, str], set[str]] = {}
    for finding, places in seen.findings:
        names = rows.setdefault((finding.check, finding.status), set())
        names.update(places)
    return rows


def on_rail(number: int, **fields: object) -> Change:
    return lambda report: report["rails"][number].update(fields)


BROKEN: list[tuple[Change, tuple[str, str]]] = [
    (on_rail(1, gid="10.99.0.3", addresses=["10.99.0.3/24"]), ("fleet.rail-same", "unknown")),
    (on_rail(1, gid_type="RoCE v1"), ("fleet.rail-same", "warn")),
    (on_rail(1, gid_type={"unknown": "not read"}), ("fleet.rail-unknown", "unknown")),
    (on_rail(1, gid="fe80:0000:0000:0000:0002:c903:00a1:b2c3"), ("fleet.rail-unknown", "unknown")),
    (every_rail(gid_type="RoCE v1"), ("fleet.rail-apart", "fail")),
    (every_rail(link_layer="InfiniBand", gid="fe80::1"), ("fleet.rail-apart", "fail")),
    (lambda report: report.update(rails={"unknown": "EPERM"}), ("fleet.rail-unknown", "unknown")),
]


@each_row(("change", "expected"), BROKEN)
def test_the_node_that_is_cut_off_is_named(change: Change, expected: tuple[str, str]) -> None:
    """One of four nodes is made different; that one is named, and no other finding is."""
    seen = answer("gpu[1-4]", {"gpu3": change})
    assert found(seen) == {expected: {"gpu3"}}
    assert seen.status == expected[1]


def test_routes_that_were_not_read_leave_it_open() -> None:
    """What is not directly on one network is unknown then, and why is said."""
    change = on_rail(1, gid="10.99.0.3", addresses=["10.99.0.3/24"], exits={"unknown": "a VRF"})
    seen = answer("gpu[1-4]", {"gpu3": change})
    assert found(seen) == {("fleet.rail-same", "unknown"): {"gpu3"}}
    assert "what is routed out of it was not read: a VRF" in seen.findings[0][0].text


def test_each_rail_a_network_of_its_own_is_fine() -> None:
    """Eight names in eight networks without routes between them; and one flat network."""
    fine = answer("gpu[1-4]")
    assert (fine.status, fine.findings, fine.exit_code) == ("pass", [], 0)

    def flat(report: Report) -> None:
        for number, rail in enumerate(report["rails"]):
            address = f"10.0.{number}.{report['node'][3:]}"
            rail |= {"gid": address, "addresses": [f"{address}/16"]}

    assert answer("gpu[1-4]", dict.fromkeys(FOUR, flat)).status == "pass"
    left_out = on_rail(1, gid_type="RoCE v1", used=False)  # by the launch
    assert answer("gpu[1-4]", {"gpu3": left_out}).status == "pass"
    assert answer("gpu1").status == "unknown"  # a node alone reaches nobody that is known


def rack(number: int, *exits: str) -> Change:
    """Networks that this node has alone."""

    def change(report: Report) -> None:
        for at, rail in enumerate(report["rails"]):
            rail |= {"gid": f"10.{at}.{number}.1", "addresses": [f"10.{at}.{number}.1/24"]}
            rail |= {"netdev": f"eth{at}", "exits": list(exits)}

    return change


def test_networks_by_the_rack_need_routes() -> None:
    """With them all is well; without, no node can be told right from wrong: all are named."""
    routed = {name: rack(number, "10.0.0.0/8") for number, name in enumerate(FOUR, 1)}
    assert answer("gpu[1-4]", routed).status == "pass"
    cut = {name: rack(number) for number, name in enumerate(FOUR, 1)}
    assert found(answer("gpu[1-4]", cut)) == {("fleet.rail-apart", "unknown"): {*FOUR}}


def test_a_route_that_is_none_is_no_route() -> None:
    """What a report says of its routes is not to be trusted to be a network."""
    seen = answer("gpu[1-4]", {"gpu1": every_rail(exits=["default", "10.0.0.0/99", ""])})
    of_gpu1 = [rail for rail in seen.parts["rails"] if rail["nodes"]["set"] == "gpu1"]
    assert [rail["routes"] for rail in of_gpu1] == [[]] * 8
    assert seen.status == "pass"


@given(st.data())
def test_the_order_of_the_reports_does_not_count(data: st.DataObject) -> None:
    rows = data.draw(st.permutations(five_rows()))
    assert found(rail_answer(rows, ())) == {("fleet.rail-same", "unknown"): {"gpu4"}}


@cache
def five_rows() -> list[NodeRow]:
    """Of five nodes, of which gpu4 has one port in a network of its own."""
    change = on_rail(2, gid="10.77.0.1", addresses=["10.77.0.1/24"])
    return rows_of(fleet_reports("gpu[1-5]", {"gpu4": change}))


def test_the_command(tmp_path: Path) -> None:
    """Text and JSON say the same; what is no report is counted, and unknown."""
    change = on_rail(1, gid="10.99.0.3", addresses=["10.99.0.3/24"])
    path = write_lines(tmp_path / "reports.jsonl", fleet_reports("gpu[1-4]", {"gpu3": change}))
    text = CliRunner().invoke(rails, [path], standalone_mode=False)
    assert text.return_value == 3
    assert "unknown: fleet.rail-same on gpu3: mlx5_1\n" in text.output
    shown = CliRunner().invoke(rails, ["--json", path], standalone_mode=False)
    whole = json.loads(shown.output)
    valid(whole, SCHEMA)
    rows = [one for one in whole["answer"]["rails"] if one["rail"] == "mlx5_1"]
    assert {one["network"]: one["nodes"]["set"] for one in rows} == {
        "10.11.0.0/16": "gpu[1-2,4]",
        "10.99.0.0/24": "gpu3",
    }
    stray = tmp_path / "stray.json"
    stray.write_text("no report")
    good = write_lines(tmp_path / "good.jsonl", fleet_reports("gpu[1-4]"))
    assert CliRunner().invoke(rails, [good], standalone_mode=False).return_value == 0
    result = CliRunner().invoke(rails, [good, str(stray)], standalone_mode=False)
    assert (result.return_value, "1 reports cannot be used" in result.output) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exports", "affinity"),
    [
        ("", "any"),
        ("export MC_ENABLE_DEST_DEVICE_AFFINITY=0\n", "same name"),  # any value, says getenv
        ("export MC_ENABLE_HCA_PEER_AFFINITY=true\n", "listed"),
        ("export MC_ENABLE_HCA_PEER_AFFINITY=yes\n", "any"),
        ("export MC_ENABLE_DEST_DEVICE_AFFINITY=1 MC_ENABLE_HCA_PEER_AFFINITY=1\n", "any"),
    ],
)
def test_a_report_says_which_affinity_the_launch_has(
    tmp_path: Path, exports: str, affinity: str
) -> None:
    """As config.cpp takes the two variables, each alone and both together."""
    script = tmp_path / "launch.sh"
    script.write_text(f"{exports}{LAUNCH}")
    root = build_host(tmp_path / "host", gpu_host())
    with redirect_stdout(io.StringIO()) as printed:
        run(["check", "--json", "--timeout", "600", "--root", str(root), str(script)])
    share = json.loads(printed.getvalue())["answer"]["machine"]["share"]
    assert share["affinity"] == affinity
