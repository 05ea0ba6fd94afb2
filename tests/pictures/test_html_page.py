"""The frame of every page: what is shown is no markup, nothing is fetched, all is legible."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.render.html_page import Html, Keyed, element, escape, join, page, status_badge, table
from tests.paths import ROOT
from tests.pictures.markup import Markup, faults

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
    assert markup.all("div")[0] == {
        "class": "scroll",
        "tabindex": "0",
        "role": "region",
        "aria-label": "Nodes",
    }
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

CSS = (ROOT / "preflight/data/page.css").read_text()
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
