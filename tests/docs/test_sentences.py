"""The pages are for engineers whose English is a second language: no sentence is long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from tests.paths import ROOT

MOST_WORDS = 25
PAGES = sorted(
    chain(
        ROOT.glob("*.md"),
        *((ROOT / folder).rglob("*.md") for folder in ("checks", "docs", "preflight")),
        ROOT.glob("tests/data/*/README.md"),
    )
)
# What is shown of a command, and comments.
SHOWN = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.DOTALL | re.MULTILINE)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>] |\d+\. |[|#]))")
END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z(*\[-])")


def sentences(page: str) -> Iterator[str]:
    """Yield each sentence of a Markdown page; code in a line is the one word ``CODE``. A colon or
    semicolon before a capital ends a sentence too. Headings and tables have none."""
    for paragraph in PARAGRAPH.split(SHOWN.sub("\n\n", page)):
        if not paragraph.strip() or paragraph.lstrip("\n").startswith(("#", "|")):
            continue
        text = re.sub(r"`[^`]*`", "CODE", " ".join(paragraph.split()))
        yield from END.split(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def test_a_sentence_is_counted_without_what_is_shown() -> None:
    page = "# A title\n\nOne two: `a b`\nthree. [Four five](six.md)\n\n- seven\n\n```\neight\n```\n"
    assert list(sentences(page)) == ["One two:", "CODE three.", "Four five", "- seven"]


def test_no_sentence_of_a_page_has_more_than_25_words() -> None:
    """Split a longer one into sentences of one idea each, or leave half of it out."""
    assert len(PAGES) > 150
    assert [
        f"{page.relative_to(ROOT)}: {count} words: {sentence}"
        for page in PAGES
        for sentence in sentences(page.read_text())
        if (count := len(sentence.split())) > MOST_WORDS
    ] == []
