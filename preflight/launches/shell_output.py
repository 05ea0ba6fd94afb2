"""What the few programs write whose output follows from their words: echo, printf, dirname, seq."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

# Programs that write a text which follows from their words.
TALKS = frozenset("basename cat dirname readlink realpath seq".split())
# Of a longer seq nobody starts a process each.
_MOST_NUMBERS = 1024


def written_out(program: str, arguments: Sequence[str]) -> str | None:
    """Return the output of a program that depends on its words alone; None if not known."""
    if program == "echo":
        flag = arguments[0] if arguments and arguments[0] in ("-n", "-e", "-ne", "-en") else ""
        text = " ".join(arguments[1:] if flag else arguments)
        if "\\" in text and "e" in flag:
            return None
        return text if "n" in flag else text + "\n"
    if program == "printf" and arguments and not arguments[0].startswith("-"):
        text = arguments[0].replace("\\n", "\n")
        return None if "%" in text or "\\" in text else text
    plain = [text for text in arguments if text != "--"]
    options = arguments[:1] != ["--"] and any(text.startswith("-") for text in plain)
    if program in ("dirname", "basename") and len(plain) == 1 and not options:
        stripped = plain[0].rstrip("/") or "/"
        folder, _, name = stripped.rpartition("/")
        if program == "basename":
            return (name or stripped) + "\n"
        return (folder.rstrip("/") or ("/" if "/" in stripped else ".")) + "\n"
    if program in ("realpath", "readlink"):
        paths = [text for text in plain if not text.startswith("-")]
        known = len(paths) == 1 and paths[0].startswith("/")
        return posixpath.normpath(paths[0]) + "\n" if known else None
    if program == "seq" and all(re.fullmatch(r"-?\d{1,9}", text) for text in plain):
        first, last = [1, *map(int, plain), 0][-3:-1]
        if len(plain) in (1, 2) and last - first <= _MOST_NUMBERS:
            return "".join(f"{each}\n" for each in range(first, last + 1))
    return None
