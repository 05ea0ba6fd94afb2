"""The frame of every HTML page: one document, nothing fetched, readable on a phone and on paper.

What is shown comes from hosts and launches, so a plain ``str`` is always text here; markup is
``Html`` (of markupsafe), which these functions alone make. Besides, the page's own policy forbids
every script but this module's and the caller's, by their hashes, and every address.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import markupsafe

from checks.framework.regex import regex
from checks.host_snapshot.secrets import public
from preflight.base.program import data_file

# Markup, to be taken as it stands.
Html = markupsafe.Markup
# In the order in which a table sorts them, the worst first; other words are sorted after these.
STATUSES = ("fail", "unknown", "warn", "ignored", "pass", "skip")
# What no document may hold, moves the cursor, or turns the direction of the text around it.
_UNSEEN = regex(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Keyed(NamedTuple):
    """A cell that a table sorts by ``key`` (a number), not by what is shown."""

    shown: str
    key: float


Cell = str | Keyed


def page(title: str, body: str, script: str = "", style: str = "") -> str:
    """Return a whole HTML document. body is HTML; script and style are added to those of every
    page.

    Raises:
        ValueError: If a script holds ``</script`` or ``<!--``.
    """
    scripts = [_data("page.js"), *([script] if script else [])]
    for text in scripts:
        if "</script" in text.lower() or "<!--" in text:
            raise ValueError("a script may not hold '</script' or '<!--'")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; script-src {' '.join(_hash(text) for text in scripts)}"
    )
    tags = "".join(f"<script>{text}</script>\n" for text in scripts)
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>
{_data("page.css")}{style}</style>
</head>
<body>
<main>
{body}
</main>
{tags}</body>
</html>
"""


def escape(text: str) -> Html:
    """Return text as markup, without secrets; what cannot be seen is written out."""
    if isinstance(text, Html):
        return text
    return markupsafe.escape(_UNSEEN.sub(lambda m: f"\\x{ord(m[0]):02x}", public(text)))


def element(name: str, *inner: str, **attributes: str | float | None) -> Html:
    """Return one HTML element.

    Plain text in ``inner`` is escaped, Html is not.

    Args:
        attributes: ``class_`` is class, ``data_sort`` is data-sort; one with the value None is left
            out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(inner)}</{name}>")


def _value(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else escape(str(value))


def tick(id_: str, label: str, checked: bool = False) -> Html:
    """Return a box to tick, ``label`` behind it; ``print-all``: paper shows what is ``.screen``."""
    box = Html(f'<input type="checkbox" id="{escape(id_)}" {"checked" if checked else ""}>')
    return element("label", box, " ", label)


def facts_list(rows: Iterable[tuple[str, str]]) -> Html:
    """Return a list of names with what is said of each; rows without a text are left out."""
    parts = [(element("dt", name), element("dd", text)) for name, text in rows if text]
    inner = [part for pair in parts for part in pair]
    return element("dl", *inner, class_="facts") if inner else Html("")


def join(parts: Iterable[str], between: str = "") -> Html:
    """Return several texts or markups as one markup."""
    return Html(escape(between).join(escape(part) for part in parts))


def status_badge(status: str) -> Html:
    """Return a status as a word in its colour; a column of such words sorts the worst first."""
    known = status in STATUSES
    key = STATUSES.index(status) if known else len(STATUSES)
    classes = f"badge {status}" if known else "badge"
    return element("span", status, class_=classes, data_sort=str(key))


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    name: str = "",
    sortable: bool = False,
    numeric_columns: Collection[int] = (),
) -> Html:
    """Return a table in a box, which scrolls if the window is narrower.

    On a phone each row is a list, headings beside cells. The first cell of a row is its heading.

    Args:
        name: Of the table for a screen reader, if it has no caption.
        numeric_columns: By index, shown to the right and sorted as numbers with units (``1.5 GiB``
            after ``900 MiB``).
    """
    kinds = ["number" if at in numeric_columns else "" for at in range(len(headings))]
    labels = [element("button", head, type="button") if sortable else head for head in headings]
    heads = [
        element("th", shown, class_=classes or None, scope="col")
        for shown, classes in zip(labels, kinds, strict=True)
    ]
    lines = [
        element("tr", *(_row_cell(at, *cell) for at, cell in enumerate(cells)))
        for cells in (zip(row, kinds, headings, strict=True) for row in rows)
    ]
    parts = [
        element("caption", caption) if caption else "",
        element("thead", element("tr", *heads)),
        Html("\n"),
        element("tbody", join(lines, "\n")),
    ]
    whole = element("table", *parts, class_="sortable" if sortable else None)
    # A box that scrolls is to be reached by keyboard, and then has to have a name.
    label = caption or name or ", ".join(headings)
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)


def _row_cell(at: int, cell: Cell, classes: str, head: str) -> Html:
    if isinstance(cell, Keyed):
        cell = element("span", cell.shown, data_sort=repr(float(cell.key)))
    if at == 0 and cell:
        return element("th", cell, class_=classes or None, scope="row")
    return element("td", cell, class_=classes or None, data_head=head if cell else None)


def _data(name: str) -> str:
    with open(data_file(name, "base"), encoding="utf-8") as file:
        return file.read()


def _hash(script: str) -> str:
    from base64 import b64encode
    from hashlib import sha256

    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
