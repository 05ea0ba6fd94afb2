"""The pages' blocks that begin with ``$``: each command is run, and must print what stands there.

A page's blocks run in one folder, in the order in which they stand; the clone's ``docs`` are in
it. ``$ cat FILE`` writes what follows as that file, where there is none. A line ``[...]`` stands
for lines that the page leaves out.

``python -m tests.docs.blocks`` writes into the pages what the commands print now; where lines are
left out, as many stay before and after as there were.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from preflight.cli import main, sizing
from tests.paths import ROOT

# The columns of a terminal that nobody has made wider.
COLUMNS = "80"
LEFT_OUT = "[...]"
_COUNTED = re.compile(r"\d+ (?=pass|skip)")
# README's example of sizing is of any host, and has a test of its own.
_BLOCK = re.compile(r"(?<=^```\n)\$ (?!mooncake-hicache-sizing --tp).*?(?=^```$)", re.M | re.S)
# Those whose commands take a cluster; tests of their own print what they show.
ELSEWHERE = ("fleet",)
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").glob("*.md")) if not p.name.startswith(ELSEWHERE)),
]
# Seconds. What is printed may not depend on how busy the machine is.
PATIENCE = ["--timeout", "600"]


class Step(NamedTuple):
    """A command of a block, and what the page shows of its output."""

    command: str
    shown: list[str]

    @property
    def line(self) -> str:
        """The command without the ends of lines."""
        return self.command.replace("\\\n", " ")


def steps(block: str) -> list[Step]:
    """Split a block at its commands; each may go on behind a backslash."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.M)[1:]
    return [
        Step(command, output.rstrip("\n").split("\n") if output.strip() else [])
        for command, output in zip(parts[::2], parts[1::2], strict=True)
    ]


def printed(line: str) -> list[str]:
    """Run one command in the folder where this is, and return what it prints."""
    name, *words = shlex.split(line)
    if name == "cat":
        return Path(words[0]).read_text().rstrip("\n").split("\n")
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    run = {"mooncake-preflight": main.run, "mooncake-hicache-sizing": sizing.run}[name]
    if name == "mooncake-preflight" and {"--root", "--host"} & set(words):
        at = words.index("--") if "--" in words else len(words)
        words = words if words[0] == "read" else [*words[:at], *PATIENCE, *words[at:]]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run(words)
    text = "".join(stream.buffer.getvalue().decode() for stream in (out, err))
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


def agree(shown: list[str], found: list[str]) -> bool:
    """Whether ``found`` is what is shown, with anything where lines are left out. How many checks
    there are is no promise of a page."""
    shown, found = ([_COUNTED.sub("", line) for line in lines] for lines in (shown, found))
    if LEFT_OUT not in shown:
        return shown == found
    at = shown.index(LEFT_OUT)
    head, tail = shown[:at], shown[at + 1 :]
    return found[:at] == head and found[max(at, len(found) - len(tail)) :] == tail


def renewed(shown: list[str], found: list[str]) -> list[str]:
    """Return ``found`` with as much left out as in what is shown."""
    if LEFT_OUT not in shown:
        return found
    at = shown.index(LEFT_OUT)
    behind = len(shown) - at - 1
    return [*found[:at], LEFT_OUT, *(found[-behind:] if behind else [])]


@contextlib.contextmanager
def in_new_folder() -> Iterator[None]:
    """A folder with the clone's docs alone, 80 columns, and none of the caller's settings for
    Mooncake."""
    before, environment = os.getcwd(), dict(os.environ)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("docs").symlink_to(ROOT / "docs")
        for name in list(os.environ):
            if name.startswith(("MC_", "MOONCAKE", "SGLANG")):
                del os.environ[name]
        os.environ.update(COLUMNS=COLUMNS, NO_COLOR="1")
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


def run_page(page: Path) -> Iterator[tuple[Step, list[str]]]:
    """Yield each command of a page with what it prints now."""
    with in_new_folder():
        for block in _BLOCK.findall(page.read_text()):
            for step in steps(block):
                name, *words = step.line.split()
                if name == "cat" and not Path(words[0]).exists():
                    Path(words[0]).write_text("\n".join(step.shown) + "\n")
                yield step, printed(step.line)


def renew(page: Path) -> str:
    """Return the page with what its commands print now."""
    found = [(step, renewed(step.shown, lines)) for step, lines in run_page(page)]

    def block(match: re.Match[str]) -> str:
        lines: list[str] = []
        for _ in steps(match[0]):
            step, shown = found.pop(0)
            lines += [f"$ {step.command}", *shown]
        return "\n".join(lines) + "\n"

    return _BLOCK.sub(block, page.read_text())


if __name__ == "__main__":
    for path in PAGES:
        if not sys.argv[1:] or path.name in sys.argv[1:] or str(path) in sys.argv[1:]:
            path.write_text(renew(path))
