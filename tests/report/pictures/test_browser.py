"""Pages in a real browser: on a phone and on a screen, light and dark, sorted, and on paper."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.base.html_page import Keyed, page, status_badge, table
from preflight.cli.main import run
from preflight.fleet.merge.command import AnswerOptions, show_fleet
from tests.builders.synthetic import GIB, MIB, erdma_host, gpu_host, limited_container, plain_host
from tests.cache_sizing.capacity.test_capacity_trace import QWEN, TURNS
from tests.checks.test_synthetic import ERDMA, FITTED, LAUNCH, NICS, script
from tests.fleet.merge_fleets import merged_reports
from tests.fleet.test_merge_command import odd_fleet
from tests.paths import ROOT
from tests.report.pictures.conftest import Browser
from tests.report.pictures.test_check_html import HOSTILE, checked

pytestmark = pytest.mark.browser

BENCHMARK = (
    "python3 bench_multiturn.py --model-path Qwen/Qwen3-32B --num-clients 80 --num-rounds 10 "
    "--request-length 2048 --output-length 1 --disable-auto-run --enable-round-barrier"
)
FAILING = replace(
    gpu_host(),
    memlock=("8388608", "8388608"),
    capabilities=0,
    uid=1000,
    nics=gpu_host().nics[:7],
    pools={2 * MIB: 20000, GIB: 0},
)
LONG = "a-name-without-any-blank-" * 12
CASES = {
    "passing, with a curve": (FITTED, f"{LAUNCH} &\n{BENCHMARK}\n"),
    "failing": (FAILING, LAUNCH.replace("--hicache-size 30", "--hicache-size 300")),
    "container": (limited_container(), script("Qwen/Qwen3-8B", 2, "mlx5_0", "32gb")),
    "cloud": (erdma_host(), script("Qwen/Qwen3-8B", 2, ERDMA, "32gb")),
    "nothing there": (plain_host(), script("Qwen/Qwen3-8B", 2, "mlx5_0", "32gb")),
    "hostile": (
        replace(FITTED, gpus=[gpu._replace(name=HOSTILE) for gpu in gpu_host().gpus]),
        LAUNCH.replace("Qwen/Qwen3-32B", f"'{HOSTILE}'").replace(NICS, LONG),
    ),
}
# What reaches beyond the window, but for what lies in a box that scrolls.
BEYOND = """
Array.from(document.querySelectorAll("body *"))
  .filter((each) => !each.parentElement.closest(".scroll, svg, caption") &&
    each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, (host, text) in CASES.items():
        folder = tmp_path_factory.mktemp("host")
        found[name] = folder / "page.html"
        checked(folder, host, text, "--format", "html", "--output", str(found[name]))
    return found


# Boxes that scroll sideways, and what of a picture lies beyond it.
SCROLLS = """
Array.from(document.querySelectorAll(".scroll"))
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.getAttribute("aria-label"))
"""
CUT = """
Array.from(document.querySelectorAll("svg")).flatMap((picture) => {
  const whole = picture.getBoundingClientRect();
  return Array.from(picture.querySelectorAll("circle")).filter((each) => {
    const own = each.getBoundingClientRect();
    return own.width && (own.top < whole.top || own.right > whole.right);
  }).map((each) => each.outerHTML);
})
"""


@pytest.mark.parametrize("name", [*CASES, "fleet", "trace"])
def test_a_phone_shows_all_of_it(window: Browser, every_page: dict[str, Path], name: str) -> None:
    """No table scrolls there either, and no mark is cut off."""
    window.show(every_page[name], 390)
    window.value("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert window.value(SCROLLS) == []
    assert window.value(CUT) == []
    assert window.value("document.scrollingElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [320, 768])
@pytest.mark.parametrize("name", CASES)
def test_a_page_fits_the_window(
    window: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    """It never scrolls sideways, open or folded, asks for nothing else and complains of nothing."""
    window.show(pages[name], width)
    for _ in range(2):
        assert window.value("document.scrollingElement.scrollWidth") <= width
        assert window.value(BEYOND) == []
        window.value("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert window.requested() == [pages[name].resolve().as_uri()]
    assert window.complaints() == []


@pytest.mark.parametrize(("scheme", "ground"), [("light", (255, 255, 255)), ("dark", (20, 23, 27))])
def test_a_page_follows_the_readers_scheme(
    window: Browser, pages: dict[str, Path], scheme: str, ground: tuple[int, int, int]
) -> None:
    window.show(pages["failing"], 1280, scheme=scheme)
    colour = window.value("getComputedStyle(document.body).backgroundColor")
    assert colour == f"rgb({ground[0]}, {ground[1]}, {ground[2]})"


def test_bars_are_as_wide_as_they_say(window: Browser, pages: dict[str, Path]) -> None:
    """Each bar's parts fill it, on a phone as well."""
    window.show(pages["failing"], 360)
    shares = window.value(
        """Array.from(document.querySelectorAll("svg.membar"), (bar) => {
          const parts = Array.from(bar.querySelectorAll("g > rect[class^=k-]"));
          const sum = parts.reduce((all, each) => all + each.getBoundingClientRect().width, 0);
          return sum / bar.clientWidth;
        })"""
    )
    assert len(shares) == 7  # now and with the launch, of three places; and what is locked
    assert all(abs(share - 1) < 0.01 for share in shares)


# axe-core, which the browser runs: a package of PyPI ships it; .ci/run puts it there.
AXE = ROOT / ".cache/axe/axe_playwright_python/axe.min.js"
FOUND = """axe.run().then((found) => [
  found.passes.map((rule) => rule.id),
  found.violations.map((rule) => [
    rule.id, rule.impact, rule.nodes.map((each) => each.html.slice(0, 120))])])"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("pip install --no-deps --target .cache/axe axe-playwright-python")
    return AXE.read_text()


@pytest.fixture(scope="module")
def every_page(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each command that writes one: check, its error, fleet, capacity of a trace, fit."""
    folder = tmp_path_factory.mktemp("pages")
    more = {name: folder / f"{name}.html" for name in ("error", "fleet", "trace", "fit")}
    assert run(["check", "--format", "html", "--output", str(more["error"]), "/nowhere.sh"]) == 64
    shown = AnswerOptions(None, [("html", str(more["fleet"]))], "never", 0)
    show_fleet(merged_reports(odd_fleet()), shown)
    (folder / "run.sh").write_text(f"{QWEN}\n")
    (folder / "trace.jsonl").write_text("".join(f"{json.dumps(turn)}\n" for turn in TURNS))
    traced = ["--trace", str(folder / "trace.jsonl"), "--curve"]
    traced += ["--format", "html", "--output", str(more["trace"])]
    words = ["capacity", "--root", "demo:h800", "--gpu-memory", "80gb", *traced]
    assert run([*words, str(folder / "run.sh")]) == 0
    few = "fit --model Qwen/Qwen3-8B --memory 128gb --gpus 1xA40 --clients 20 --rounds 4"
    few += " --request-length 2048 --format html --output"
    assert run([*few.split(), str(more["fit"])]) == 0
    return {**pages, **more}


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
@pytest.mark.parametrize("name", [*CASES, "error", "fleet", "trace", "fit"])
def test_axe_finds_nothing(
    window: Browser, axe: str, every_page: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    """Of any impact, open as folded; and it has looked."""
    window.show(every_page[name], width, scheme=scheme)
    window.value(f"{axe}; 0")
    window.value("document.querySelectorAll('details').forEach((each) => each.open = true)")
    passes, violations = window.value(FOUND)
    assert violations == []
    assert {"color-contrast", "landmark-one-main", "page-has-heading-one"} <= set(passes)


# Scripts -------------------------------------------------------------------------------------

ROWS = [
    ("node2", status_badge("pass"), "900 MiB", Keyed("high", 3)),
    ("node10", status_badge("fail"), "1.5 GiB", Keyed("low", 1)),
    ("node1", status_badge("warn"), "unknown", Keyed("middle", 2)),
    ("node3", status_badge("pass"), "12 GiB", Keyed("low", 1)),
]
NAMES = "Array.from(document.querySelectorAll('tbody th'), (each) => each.textContent).join(' ')"


@pytest.fixture
def sortable(tmp_path: Path) -> Path:
    heads = ["name", "status", "free", "load"]
    body = table(heads, ROWS, caption="Nodes", sortable=True, numeric_columns=[2, 3])
    file = tmp_path / "table.html"
    file.write_text(page("Nodes", body))
    return file


def clicked(window: Browser, column: int) -> tuple[str, str]:
    """The rows' names after a click on a heading, and what it says of its order."""
    button = f"document.querySelectorAll('thead button')[{column}]"
    window.value(f"{button}.click()")
    order = window.value(f"{button}.parentElement.getAttribute('aria-sort')")
    return window.value(NAMES), order


def test_a_click_sorts_and_another_turns_it_round(window: Browser, sortable: Path) -> None:
    """Names as people count, statuses the worst first, sizes by their units, keys as given."""
    window.show(sortable, 1280)
    assert clicked(window, 0) == ("node1 node2 node3 node10", "ascending")
    assert clicked(window, 0) == ("node10 node3 node2 node1", "descending")
    assert clicked(window, 1) == ("node10 node1 node3 node2", "ascending")
    assert clicked(window, 2) == ("node2 node10 node3 node1", "ascending")
    # What has no number stands last either way.
    assert clicked(window, 2) == ("node3 node10 node2 node1", "descending")
    assert clicked(window, 3) == ("node3 node10 node1 node2", "ascending")
    assert window.value("document.querySelectorAll('[aria-sort]').length") == 1
    assert window.complaints() == []


def test_a_heading_is_reached_and_pressed_by_keyboard(window: Browser, sortable: Path) -> None:
    """The box, then the first heading; Enter sorts."""
    window.show(sortable, 1280)
    for _ in range(2):
        window.key("Tab", 9)
    assert window.value("document.activeElement.textContent") == "name"
    window.key("Enter", 13)
    assert window.value(NAMES) == "node1 node2 node3 node10"


def test_the_policy_stops_a_script_that_was_smuggled_in(window: Browser, tmp_path: Path) -> None:
    """Even where something failed to escape: neither script, handler nor picture does anything."""
    bad = "<script>document.title = 'run'</script><p>here</p>"
    bad += "<img src='http://192.0.2.1/x.png' onerror=\"document.title = 'run'\">"
    file = tmp_path / "bad.html"
    file.write_text(page("Fine", bad))
    window.show(file, 1280)
    assert window.value("document.title") == "Fine"
    assert window.value("document.querySelector('p').textContent") == "here"
    assert "Content Security Policy" in "".join(window.complaints())


def test_a_page_is_whole_without_scripts(window: Browser, pages: dict[str, Path]) -> None:
    window.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.show(pages["failing"], 1280)
        text = window.call("DOM.getDocument", depth=-1)
        assert "hugetlb.shortage" in str(text)
    finally:
        window.call("Emulation.setScriptExecutionDisabled", value=False)


# Paper ---------------------------------------------------------------------------------------


def printed(window: Browser, shown: Path, scheme: str, first: str = "") -> list[str]:
    """The text of each sheet. first: what is clicked before."""
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext (apt-get install poppler-utils)")
    window.show(shown, 1280, scheme=scheme)
    if first:
        window.value(f"document.querySelector('{first}').click()")
    file = shown.with_suffix(".pdf")
    window.pdf(file)
    done = subprocess.run(
        ["pdftotext", "-layout", str(file), "-"], capture_output=True, text=True, check=True
    )
    sheets = done.stdout.split("\f")
    assert sheets.pop() == ""
    return sheets


def test_a_page_on_paper_is_two_sheets(window: Browser, pages: dict[str, Path]) -> None:
    """Verdict, what was found, what to do, where memory goes; the rest stays on the screen."""
    sheets = printed(window, pages["failing"], "light")
    assert len(sheets) <= 2
    text = "\n".join(sheets)
    for said in ("will not start", "hugetlb.shortage", "prlimit --pid", "L2 on huge pages"):
        assert said in text
    assert "/proc/self/limits" not in text
    assert "Copy" not in text


def test_a_page_on_paper_has_everything_where_that_is_ticked(
    window: Browser, pages: dict[str, Path]
) -> None:
    """What is folded on the screen is printed, on A4, and is folded again afterwards."""
    sheets = printed(window, pages["failing"], "dark", first="#print-all")
    text = "\n".join(sheets)
    # With evidence, which is folded, and a check that passed.
    for said in ("will not start", "hugetlb.shortage", "/proc/self/limits", "gpu.count"):
        assert said in text
    for said in ("L2 on huge pages", "GPU7", "mlx5_6"):
        assert said in text
    assert all(sheet.strip() for sheet in sheets)
    assert len(sheets) < 16
    assert window.value("document.querySelectorAll('details[open]').length") == 0
    file = pages["failing"].with_suffix(".pdf")
    assert b"(A4)" in subprocess.run(["pdfinfo", file], capture_output=True, check=True).stdout


def test_paper_is_white_for_who_reads_in_the_dark(window: Browser, pages: dict[str, Path]) -> None:
    window.show(pages["failing"], 1280, scheme="dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.call("Emulation.setEmulatedMedia", media="print", features=features)
    assert window.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


# What was found --------------------------------------------------------------------------------


def test_a_status_that_is_ticked_off_is_not_shown(window: Browser, pages: dict[str, Path]) -> None:
    window.show(pages["failing"], 390)
    each = "Array.from(document.querySelectorAll('.card, .summary li'))"
    shown = f"{each}.filter((each) => each.offsetParent)"
    before = window.value(f"{shown}.length")
    window.value("document.querySelector('#show-fail').click()")
    assert window.value(f"{shown}.filter((each) => each.classList.contains('fail')).length") == 0
    assert 0 < window.value(f"{shown}.length") < before
    window.value("document.querySelector('#show-fail').click()")
    assert window.value(f"{shown}.length") == before


def test_each_line_leads_to_its_finding(window: Browser, pages: dict[str, Path]) -> None:
    window.show(pages["failing"], 1280)
    heads = window.value(
        """Array.from(document.querySelectorAll(".summary a"), (each) => [
          each.textContent.split(":")[0],
          document.querySelector(each.getAttribute("href")).querySelector("h3").textContent,
        ])"""
    )
    assert len(heads) > 4
    assert all(name in head for name, head in heads)


def test_commands_have_a_button_that_copies_them(window: Browser, pages: dict[str, Path]) -> None:
    """Without a clipboard the command is selected, to be taken by hand."""
    window.show(pages["failing"], 1280)
    button = "document.querySelector('ol.steps button.copy')"
    assert window.value(f"{button}.textContent") == "Copy"
    window.value(f"{button}.click()")
    said = "Copy"
    for _ in range(50):
        if said == "Copy":
            time.sleep(0.02)
            said = window.value(f"{button}.textContent")
    assert said in ("Copied", "Selected")
    assert window.complaints() == []
