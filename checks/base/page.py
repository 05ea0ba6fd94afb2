"""A check's page: one Markdown file beside the code that judges, ``<id>.md``, in a fixed order.

    # memlock.limit
    The question that the check answers.
    What happens to a launch, when, and how that looks, in one paragraph or more.
    ## Outcomes          - status: when it is given
    ## What follows      the consequence of a failure, and those that some findings name instead
    ## What to do
    ## Read or seen in
    ## As root           where root sees more; may be missing

``explain``, the reports and whoever reads the repository all read this file.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import NamedTuple

from checks.base.finding import Consequence, Status

_OPTIONAL = "As root"


class Page(NamedTuple):
    """asks: the question that the check answers. consequence: of its failure.

    why: what happens to a launch, when, and how that looks. outcomes: (status, when it is given).
    remedy: in general. source: where the behaviour was read or seen. root: what root sees more.
    or_else: consequences that some of its findings name in place of that one.
    """

    asks: str
    consequence: Consequence
    why: str
    outcomes: tuple[tuple[Status, str], ...]
    remedy: str
    source: str
    root: str = ""
    or_else: tuple[Consequence, ...] = ()


@cache
def read_page(folder: str, check: str) -> Page:
    """Return the page of ``check``; tests hold every page to this order."""
    with open(os.path.join(folder, f"{check}.md"), encoding="utf-8") as file:
        head, *parts = re.split(r"^## ", file.read(), flags=re.MULTILINE)
    _title, asks, *why = _paragraphs(head)
    sections = {name: body for name, _, body in (part.partition("\n") for part in parts)}
    items = re.split(r"^- ", sections["Outcomes"], flags=re.MULTILINE)[1:]
    consequence, *or_else = map(Consequence, _one(sections["What follows"]).split(", or "))
    return Page(
        asks,
        consequence,
        "\n\n".join(why),
        tuple(_outcome(item) for item in items),
        _one(sections["What to do"]),
        _one(sections["Read or seen in"]),
        _one(sections[_OPTIONAL]) if _OPTIONAL in sections else "",
        tuple(or_else),
    )


@cache
def read_consequence(folder: str, check: str) -> Consequence:
    """Return what follows where ``check`` fails: of the page's sections this alone is looked at."""
    with open(os.path.join(folder, f"{check}.md"), encoding="utf-8") as file:
        behind = file.read().partition("\n## What follows\n")[2]
    return Consequence(_one(behind.partition("\n## ")[0]).split(", or ")[0])


def _paragraphs(text: str) -> list[str]:
    """Return each paragraph of ``text`` as one line, however it is wrapped in the file."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _one(text: str) -> str:
    (paragraph,) = _paragraphs(text)
    return paragraph


def _outcome(item: str) -> tuple[Status, str]:
    name, when = " ".join(item.split()).split(": ", 1)
    return Status(name), when
