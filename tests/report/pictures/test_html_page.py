"""Every page: what is shown is no markup, nothing is fetched, all is legible, pictures included."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Consequence, Evidence, Finding, Status
from checks.framework.unknown import Unknown
from checks.memlock.demand import Demand
from preflight.base.html_page import Html, Keyed, element, escape, join, page, status_badge, table
from preflight.base.shell import Line
from preflight.cache_sizing.capacity.deployment import Bounds, Capacity, Round, Tier
from preflight.cache_sizing.capacity.figure import capacity_figure
from preflight.report.pictures.check_page import MadeBy, PagePart, error_page, report_page
from preflight.report.pictures.figures import (
    LockedMemory,
    locked_figure,
    memory_figure,
    topology_figure,
)
from preflight.report.pictures.memory_map import Bar, BarPart, MemoryMap, MemoryPlace
from preflight.report.topology.answer import Topology, TopologyDevice, TopologyNode
from preflight.verdict.report import Findings, Report, report
from tests.paths import ROOT
from tests.report.pictures.markup import Markup, faults

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- ",
    "]]>",
    "&lt;script&gt;",
    "&#x3c;",
    "javascript:alert(1)",
    "\x00\x1b[31m\x7f\x9b",
    "\udcff\ud800",
    "a\u202eb\u2066c\ufeff",
    "{{7*7}}${7*7}",
]
# Any text at all, halves of surrogate pairs included: names of files are bytes.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(HOSTILE)


def shown(text: str) -> str:
    """The text of a paragraph as a reader gets it."""
    return Markup(f"<!DOCTYPE html>\n<p>{escape(text)}</p>").text.removeprefix("\n")


@given(ANY_TEXT)
def test_escaped_text_is_text(text: str) -> None:
    """It adds no element, in a paragraph and in an attribute, and reads as it was written."""
    document = f'<!DOCTYPE html>\n<p title="{escape(text)}">{escape(text)}</p>'
    markup = Markup(document)
    assert [name for name, _ in markup.elements] == ["p"]
    assert list(markup.elements[0][1]) == ["title"]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e]", document)
    document.encode()
    if not re.search(r"[^ -~]", text):
        assert markup.elements[0][1]["title"] == text
        assert shown(text) == text


def test_what_cannot_be_seen_is_written_out() -> None:
    assert escape("a\x1b[0m\u202eb\udcff") == r"a\x1b[0m\x202eb\xdcff"


def test_markup_is_taken_once() -> None:
    """What is escaped stays as it is; a plain string never is markup."""
    once = escape("a & b")
    assert escape(once) == once == "a &amp; b"
    assert join(["<", Html("<br>")]) == "&lt;<br>"
    assert element("p", "<", class_="a'b") == '<p class="a&#39;b">&lt;</p>'
    assert element("rect", stroke_width="1") == '<rect stroke-width="1"></rect>'


@given(ANY_TEXT, st.lists(st.tuples(ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=3), st.booleans())
def test_a_page_of_any_text_is_whole_and_well_formed(
    title: str, rows: list[tuple[str, str, str]], sortable: bool
) -> None:
    body = table([title, "b", "c"], rows, caption=title, sortable=sortable, numeric_columns=[1])
    document = page(title, join([body, status_badge(title)]))
    assert faults(document) == []
    assert [name for name, _ in Markup(document).elements].count("script") == 1


def test_a_script_of_ones_own_runs_and_no_other() -> None:
    document = page("A", "<p>a</p>", "let a = 1 < 2;")
    assert faults(document) == []
    assert Markup(document).scripts[1] == "let a = 1 < 2;"
    smuggled = document.replace("<p>a</p>", "<script>alert(1)</script>")
    assert "the policy allows other scripts than the page's" in faults(smuggled)


@pytest.mark.parametrize("script", ["'</script>'", "'</SCRIPT '", "'<!--'"])
def test_a_script_that_would_end_itself_is_refused(script: str) -> None:
    with pytest.raises(ValueError, match="script"):
        page("A", "", script)


# Tables --------------------------------------------------------------------------------------


def test_a_table_says_what_it_is_to_who_cannot_see_it() -> None:
    text = table(["node", "free"], [("a", "1 GiB")], caption="Nodes", numeric_columns=[1])
    markup = Markup(f"<!DOCTYPE html>\n{text}")
    box = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "Nodes"}
    assert markup.all("div")[0] == box
    assert [each.get("scope") for each in markup.all("th")] == ["col", "col", "row"]
    assert markup.all("td") == [{"class": "number", "data-head": "free"}]
    assert markup.all("button") == []


def test_a_sortable_table_has_a_button_in_every_heading() -> None:
    rows = [(Keyed("one", 1), status_badge("fail")), (Keyed("ten", 10.5), status_badge("odd"))]
    markup = Markup(f"<!DOCTYPE html>\n{table(['a', 'b'], rows, sortable=True)}")
    assert markup.all("button") == [{"type": "button"}] * 2
    keys = [each["data-sort"] for each in markup.all("span")]
    assert keys == ["1.0", "0", "10.5", "6"]


def test_a_status_is_a_word() -> None:
    assert status_badge("fail") == '<span class="badge fail" data-sort="0">fail</span>'
    assert status_badge("<b>") == '<span class="badge" data-sort="6">&lt;b&gt;</span>'


# Colours -------------------------------------------------------------------------------------

CSS = (ROOT / "preflight/base/page.css").read_text()
# WCAG 2.2: 1.4.3 for text, 1.4.11 for what is drawn.
TEXT_CONTRAST, DRAWN_CONTRAST = 4.5, 3.0


def schemes() -> dict[str, dict[str, str]]:
    """Colours by name: light, dark, print."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    return {
        name: dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))
        for name, block in zip(("light", "dark", "print"), blocks, strict=True)
    }


def luminance(colour: str) -> float:
    linear = []
    for at in (1, 3, 5):
        part = int(colour[at : at + 2], 16) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


READ = [("muted", "panel"), ("ink-dark", "c7"), ("ink-dark", "c8"), ("text", "code")]
READ += [(name, "ground") for name in ("text", "muted", "accent")] + [("text", "panel")]
for word in ("fail", "unknown", "warn", "pass", "skip"):
    READ += [(word, f"{word}-ground"), ("text", f"{word}-ground"), (word, "ground")]
# Parts against free memory, letters on them, lines on the ground.
DRAWN = [(f"c{part}", other) for part in range(6) for other in ("c8", "ground", "ink")]


@pytest.mark.parametrize(("pairs", "least"), [(READ, TEXT_CONTRAST), (DRAWN, DRAWN_CONTRAST)])
@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_what_is_written_or_drawn_can_be_seen_in_every_scheme(
    scheme: str, pairs: list[tuple[str, str]], least: float
) -> None:
    colours = schemes()[scheme]
    apart = {pair: contrast(*(colours[name] for name in pair)) for pair in pairs}
    assert {pair: found for pair, found in apart.items() if found < least} == {}


FAIL, UNKNOWN, WARN, PASS, SKIP = Status
MADE = MadeBy("1.2.3", "2026-01-02 03:04 UTC")

FINDINGS = st.builds(
    Finding,
    st.sampled_from(["a.b", "memlock.limit"]),
    st.sampled_from(list(Status)),
    *[ANY_TEXT] * 5,
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
    told = ("rank 0", "1 GiB", "2 GiB", "2 x 1 GiB", "it is refused")
    finding = Finding("a.b", FAIL, *told, (Evidence("/proc/x", "12"),), "free some")
    markup = Markup(report_page(reported([finding]), [], MADE))
    said = ["a launch dies later on this host", "1 fail", "a.b: rank 0", *told[1:4]]
    said += ["it is refused: dies later", "/proc/x: 12", "To do: free some"]
    said += ["run this\n# and this", "mooncake-preflight 1.2.3, 2026-01-02 03:04 UTC"]
    assert [each for each in said if each not in markup.text] == []
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
            LockedMemory(("rank 0", "rank 1"), demanded, 8, "8 B (this shell)"),
            LockedMemory(("rank 2",), demanded, None, "CAP_IPC_LOCK in effect"),
            LockedMemory(("rank 3",), Unknown("nobody knows"), 8, "8 B"),
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
