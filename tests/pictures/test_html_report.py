"""The page of a check: everything that was found, as text, and pictures that cannot break it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Consequence, Evidence, Finding, Status
from checks.base.unknown import Unknown
from checks.memlock.demand import Demand
from preflight.base.shell import Line
from preflight.capacity.deployment import Bounds, Capacity, Round, Tier
from preflight.check.report import Findings, Report, report
from preflight.pictures.check_page import Made, PagePart, error_page, report_page
from preflight.pictures.figures import (
    Locked,
    capacity_figure,
    locked_figure,
    memory_figure,
    nearest,
    topology_figure,
)
from preflight.pictures.memory_map import Bar, BarPart, MemoryMap, MemoryPlace
from preflight.render.html_page import Html, escape
from preflight.topology.answer import Topology, TopologyDevice, TopologyNode
from tests.pictures.markup import Markup, faults
from tests.pictures.test_html_page import ANY_TEXT

FAIL, UNKNOWN, WARN, PASS, SKIP = Status
MADE = Made("1.2.3", "2026-01-02 03:04 UTC")

FINDINGS = st.builds(
    Finding,
    st.sampled_from(["a.b", "memlock.limit"]),
    st.sampled_from(list(Status)),
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
    st.lists(st.builds(Evidence, ANY_TEXT, ANY_TEXT), max_size=2).map(tuple),
    ANY_TEXT,
)


def reported(findings: list[Finding], command: str = "run this", root: str = "/") -> Report:
    consequences = {"a.b": Consequence.DIES_LATER}
    found = Findings(findings, consequences.get, lambda _: (Line(command), Line("# and this")))
    return report(found, {"memlock.limit": "known"}, None, root)


@pytest.mark.slow
@given(st.lists(FINDINGS, max_size=4), ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_any_finding_is_text(findings: list[Finding], command: str, root: str, reason: str) -> None:
    sections = [PagePart("A", lambda: Unknown(reason)), PagePart("B", lambda: escape(reason))]
    document = report_page(reported(findings, command, root), sections, MADE)
    assert faults(document) == []
    document.encode()


def test_a_finding_is_told_whole() -> None:
    """Verdict, have, need, formula, what follows, where it was seen, what to do, commands."""
    finding = Finding(
        "a.b",
        FAIL,
        "rank 0",
        "1 GiB",
        "2 GiB",
        "2 x 1 GiB",
        "it is refused",
        (Evidence("/proc/x", "12"),),
        "free some",
    )
    markup = Markup(report_page(reported([finding]), [], MADE))
    for said in (
        "a launch dies later on this host",
        "1 fail",
        "a.b: rank 0",
        "1 GiB",
        "2 GiB",
        "2 x 1 GiB",
        "it is refused: dies later",
        "/proc/x: 12",
        "To do: free some",
        "run this\n# and this",
        "mooncake-preflight 1.2.3, 2026-01-02 03:04 UTC",
    ):
        assert said in markup.text
    assert markup.all("article") == [{"class": "card fail", "id": "finding-1"}]


def test_the_worst_stands_first_and_passes_are_folded() -> None:
    findings = [Finding("a.b", status, f"thing {status.value}") for status in Status]
    text = report_page(reported(list(reversed(findings))), [], MADE)
    places = [text.index(f"thing {status.value}") for status in Status]
    assert places == sorted(places)
    assert text.index('<details class="screen"><summary>What passed: 1') < places[3]
    assert '<article class="card pass">' not in text


def test_a_picture_that_breaks_leaves_the_page_whole() -> None:
    def broken() -> Html:
        raise KeyError("<b>")

    sections = [PagePart("Memory", broken), PagePart("More", lambda: Html("<p>here</p>"))]
    text = report_page(reported([]), sections, MADE)
    assert faults(text) == []
    assert "Not shown: defect of this picture: KeyError" in Markup(text).text
    assert "<p>here</p>" in text


@given(ANY_TEXT)
def test_an_error_is_a_page_too(message: str) -> None:
    document = error_page(message, MADE)
    assert faults(document) == []
    assert "No answer" in Markup(document).text


# Figures -------------------------------------------------------------------------------------


def within(figure: Html) -> str:
    """A figure as a document of its own."""
    return report_page(reported([]), [PagePart("A", lambda: figure)], MADE)


@given(ANY_TEXT, ANY_TEXT, st.integers(0, 5), st.booleans())
def test_a_memory_map_of_any_names_is_well_formed(
    name: str, note: str, over: int, known: bool
) -> None:
    bar = Bar(20 - over, (BarPart("used", 5), BarPart("pool", 5), BarPart("l2", 10)), over, (note,))
    after = bar if known else Unknown(note)
    places = (MemoryPlace(name, bar, after), MemoryPlace(name, Unknown(note), None))
    assert faults(within(memory_figure(MemoryMap(places)))) == []


@given(ANY_TEXT, ANY_TEXT, st.sampled_from(["PIX", "SYS", "odd", Unknown("why")]))
def test_a_topology_of_any_names_is_well_formed(name: str, what: str, path: str | Unknown) -> None:
    gpu = TopologyDevice("gpu", f"GPU{name}", name, 0, what, (what,))
    nic = TopologyDevice("nic", f"nic{name}", "", None, what)
    node = TopologyNode(0, name, Unknown(what))
    found = Topology((node,), (gpu,), (nic,), {(gpu.name, nic.name): path})
    assert faults(within(topology_figure(found))) == []


@given(ANY_TEXT, ANY_TEXT)
def test_a_capacity_of_any_names_is_well_formed(name: str, what: str) -> None:
    tier = Tier(name, what, Unknown(what), Bounds(1, 2), what, Bounds(3, 3))
    rounds = tuple(Round(n, n, n - 1, ((name, 0.2, 0.4),), (name,)) for n in (1, 2, 3))
    assert faults(within(capacity_figure(Capacity((tier,), 1, rounds)))) == []


def test_what_is_locked_beyond_the_limit_is_marked() -> None:
    """8 of 20 bytes may be locked; without a limit nothing is marked, and unknown has no bar."""
    demanded = Demand(2, 20, "2 NICs x 10 B")
    figure = locked_figure(
        [
            Locked(("rank 0", "rank 1"), demanded, 8, "8 B (this shell)"),
            Locked(("rank 2",), demanded, None, "CAP_IPC_LOCK in effect"),
            Locked(("rank 3",), Unknown("nobody knows"), 8, "8 B"),
        ]
    )
    markup = Markup(f"<!DOCTYPE html>\n{figure}")
    over = [each for each in markup.all("rect") if each["class"] == "p-over"]
    assert [(each["x"], each["width"]) for each in over] == [("40.0000%", "60.0000%")]
    assert "rank 0-1" in markup.text
    assert "registers 20 B, may lock 8 B (this shell); 2 NICs x 10 B" in markup.text
    assert "Not known: nobody knows" in markup.text
    assert "No process" in locked_figure([])


GPU0 = TopologyDevice("gpu", "GPU0", "0000:01:00.0", 0, "NVIDIA H20")
GPU1 = TopologyDevice("gpu", "GPU1", "0000:02:00.0", 1, "NVIDIA H20", ("rank 1",))
NIC0 = TopologyDevice(
    "nic", "mlx5_0", "0000:03:00.0", 0, "mlx5 400 Gb/s ACTIVE", ("rank 0", "rank 1")
)
NIC1 = TopologyDevice("nic", "mlx5_1", "0000:04:00.0", 0, "mlx5 400 Gb/s DOWN")
TOPOLOGY = Topology(
    (TopologyNode(0, "0-7", 1 << 30), TopologyNode(1, "8-15", 1 << 30)),
    (GPU0, GPU1),
    (NIC0, NIC1),
    {
        ("GPU0", "mlx5_0"): "NODE",
        ("GPU0", "mlx5_1"): "PIX",
        ("GPU1", "mlx5_0"): "SYS",
        ("GPU1", "mlx5_1"): Unknown("not read"),
    },
)


def test_each_gpu_is_joined_to_its_nearest_nics() -> None:
    assert nearest(TOPOLOGY, "GPU0") == ("PIX", ("mlx5_1",))
    assert nearest(TOPOLOGY, "GPU1") == ("SYS", ("mlx5_0",))
    assert nearest(TOPOLOGY, "GPU2") is None
    markup = Markup(f"<!DOCTYPE html>\n{topology_figure(TOPOLOGY)}")
    # One line within node 0; the other NIC is in another box, and is told in words.
    joined = [each for each in markup.all("line") if each.get("x1") != "0"]
    assert [each["class"] for each in joined] == ["path pix"]
    assert "GPU1: its nearest NIC (mlx5_0) is not on its node" in markup.text
    assert "PIX: through one PCIe switch" in markup.text


def test_what_the_launch_uses_is_marked_and_named() -> None:
    markup = Markup(f"<!DOCTYPE html>\n{topology_figure(TOPOLOGY)}")
    kinds = [each["class"] for each in markup.all("rect")]
    assert kinds == ["device gpu", "device nic taken", "device nic", "device gpu taken"]
    assert "rank 0-1" in markup.text


def test_a_host_without_devices_says_so() -> None:
    figure = topology_figure(Topology((), (), (), {}))
    assert "No GPU and no RDMA device is seen here" in Markup(f"<!DOCTYPE html>\n{figure}").text


def test_an_id_makes_no_secret_of_what_follows_it() -> None:
    """A rule whose name has KEY stands in front of its sentence: store-key-unknown: launch.sh:4."""
    found = Finding("store-key-unknown", WARN, "launch.sh:4", text="'buffer' is not a setting")
    document = report_page(reported([found]), [], MADE)
    assert "(removed)" not in document
    assert "launch.sh:4: &#39;buffer&#39; is not a setting" in document
