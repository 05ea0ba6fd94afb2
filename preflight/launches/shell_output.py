"""What the few programs write whose output follows from their words: echo, printf, dirname, seq."""

from __future__ import annotations

import operator
import posixpath
import re
from collections.abc import Callable, Sequence

# Programs that write a text which follows from their words.
TALKS = frozenset("basename cat dirname readlink realpath seq".split())
# Of a longer seq nobody starts a process each.
_MOST_NUMBERS = 1024


_COMPARES: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
# How scripts compare fractions: ``awk "BEGIN{exit !($RATE < 0.5)}"``.
_AWK = re.compile(
    r"\s*BEGIN\s*\{\s*exit\s*(!?)\s*\(\s*(\d+(?:\.\d+)?)\s*([<>]=?|[=!]=)\s*(\d+(?:\.\d+)?)"
    r"\s*\)\s*;?\s*\}\s*"
)


def awk_holds(texts: Sequence[str]) -> bool | None:
    """Return whether an awk that only compares two numbers ends without an error; None if not."""
    match = _AWK.fullmatch(texts[1]) if len(texts) == 2 and texts[0] == "awk" else None
    if match is None:
        return None
    negated, left, compares, right = match.groups()
    return _COMPARES[compares](float(left), float(right)) == bool(negated)


def written_out(program: str, arguments: Sequence[str]) -> str | None:
    """Return what a program that everybody has writes, of its words alone; None: not known."""
    if program == "echo":
        flag = arguments[0] if arguments and arguments[0] in ("-n", "-e", "-ne", "-en") else ""
        text = " ".join(arguments[1:] if flag else arguments)
        if "\\" in text and "e" in flag:
            return None
        return text if "n" in flag else text + "\n"
    if program == "printf" and arguments[:1] != ["-v"]:
        return printed(arguments)
    plain = [text for text in arguments if text != "--"]
    options = arguments[:1] != ["--"] and any(text.startswith("-") for text in plain)
    if program in ("dirname", "basename") and plain and not options:
        stripped = plain[0].rstrip("/") or "/"
        folder, _, name = stripped.rpartition("/")
        if program == "dirname" and len(plain) == 1:
            return (folder.rstrip("/") or ("/" if "/" in stripped else ".")) + "\n"
        if program == "basename" and len(plain) <= 2:
            name = name or stripped
            suffix = plain[1] if len(plain) == 2 else ""
            return (name.removesuffix(suffix) if name != suffix else name) + "\n"
    if program in ("realpath", "readlink"):
        paths = [text for text in plain if not text.startswith("-")]
        known = len(paths) == 1 and paths[0].startswith("/")
        return posixpath.normpath(paths[0]) + "\n" if known else None
    if program == "seq" and plain and all(re.fullmatch(r"-?\d{1,9}", text) for text in plain):
        numbers = [int(text) for text in plain]
        if len(numbers) > 3:
            return None
        first, last = numbers[0] if len(numbers) > 1 else 1, numbers[-1]
        step = numbers[1] if len(numbers) == 3 else 1
        if not step or abs(last - first) // abs(step) > _MOST_NUMBERS:
            return None
        return "".join(f"{each}\n" for each in range(first, last + (1 if step > 0 else -1), step))
    return None


def printed(arguments: Sequence[str]) -> str | None:
    """Return what printf writes of %s, %d and %%, \\n and \\t; None if its format has others."""
    pieces = re.findall(r"%[sd%]|\\[nt\\]|[^%\\]+|.", arguments[0], re.DOTALL) if arguments else []
    takes = [piece for piece in pieces if piece in ("%s", "%d")]
    if not pieces or any(piece in ("%", "\\") for piece in pieces):
        return None
    left, text = list(arguments[1:]), ""
    while True:
        for piece in pieces:
            if piece in ("%s", "%d"):
                argument = left.pop(0) if left else "" if piece == "%s" else "0"
                if piece == "%d" and not re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", argument):
                    return None
                text += argument
            else:
                text += {"%%": "%", "\\n": "\n", "\\t": "\t", "\\\\": "\\"}.get(piece, piece)
        if not left or not takes:
            return text
