"""What mkdocs adds to ``docs``: the pages that lie beside the code, and tables made of records.

Links out of ``docs`` lead to those pages, or to the files themselves, which the site has as well.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(?=[#)])")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages beside the code, the files that pages link to, and the tables."""
    from mkdocs.structure.files import File

    made = {
        "reference/log-lines.md": log_lines(),
        "reference/checks.md": checks(),
        "reference/rules.md": rules(),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    wanted = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "preflight" / "launch_problems" / "rules").glob("*.md"),
    ]
    wanted += (ROOT / "checks").glob("*/*.md")
    for page in wanted:
        for name in {*linked(page), page.relative_to(ROOT).as_posix()}:
            if (ROOT / name).is_file() and files.get_file_from_path(within_site(name)) is None:
                # As raw text: a schema's or an example's link leads to the file.
                content = (ROOT / name).read_text()
                files.append(File.generated(config, within_site(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links between files of the repository links between pages of the site."""
    here = page.file.src_uri
    if here.startswith("reference/"):
        return markdown
    folder = posixpath.dirname(in_repository(here))

    def target(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, match[1]))
        if (ROOT / name).is_dir():  # the site has no folders: the page that speaks of its files
            name = "docs/check.md"
        return posixpath.relpath(within_site(name), posixpath.dirname(here) or ".")

    return _LINK.sub(target, markdown)


def linked(page: Path) -> Iterable[str]:
    """Return the files that a page links to, as names within the repository."""
    for name in _LINK.findall(page.read_text()):
        yield os.path.relpath(page.parent / name, ROOT)


def within_site(name: str) -> str:
    return name.removeprefix("docs/")


def in_repository(name: str) -> str:
    return name if (ROOT / name).is_file() and not name.startswith("README") else f"docs/{name}"


def log_lines() -> str:
    """Return every known line of a log, as ``explain --index`` prints it."""
    from preflight.server_logs.by_words import index_rows

    rows = (
        f"### `{one_line(row.excerpt)}`\n\n{row.printer}, {row.stage.word}. "
        f"{cell(row.cause)}\n\n**Do:** {cell(row.remedy)}\n\n"
        f"`mooncake-preflight explain {(row.checks or (row.pattern,))[0]}`\n"
        for row in index_rows()
    )
    return "# Every known line\n\n" + "\n".join(rows)


def checks() -> str:
    """Return every check, with what it asks."""
    from preflight.cli.explain import list_rows
    from preflight.verdict.catalogue import catalogue

    rows = (row for row in list_rows(catalogue()) if row["of"] != "rule")
    lines = (f"| `{row['check']}` | {row['of']} | {cell(row['asks'])} |" for row in rows)
    return "# Every check\n\n| id | of | asks |\n| --- | --- | --- |\n" + "\n".join(lines) + "\n"


def rules() -> str:
    """Return every rule about launches, with words in which it holds and those that mend it."""
    from preflight.launch_problems.rules.launch_rules import RULES

    lines = (
        f"| `{id_}` | {page.severity and page.severity.value} | {cell(page.asks)} | "
        f"{code(page.before)} | {code(page.after)} |"
        for id_, page in ((rule.id, rule.page) for rule in RULES.values())
    )
    head = "| id | | finds | before | after |\n| --- | --- | --- | --- | --- |\n"
    wide = "---\nhide: [navigation, toc]\n---\n\n"
    return f"{wide}# Every rule, before and after\n\n{head}" + "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def cell(text: str) -> str:
    """Return a text as a cell of a table, or a line, that Markdown shows as it is."""
    return one_line(text).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def code(text: str) -> str:
    return f"`{one_line(text)}`".replace("|", "\\|") if text else ""
