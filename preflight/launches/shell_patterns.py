"""Patterns and braces of a shell: ``${A%.sh}``, ``case``, ``{0..7}``."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Sequence

from preflight.launches.shell_words import Piece

# Longer texts are left as written: each place in them is tried.
_LONGEST_TEXT = 2000
_MOST_WORDS = 1024
_LONGEST_BRACES = 2000
_EXTENDED = re.compile(r"[?*+@!]\(")
_SEQUENCE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])", re.ASCII)


def pattern(parts: Sequence[tuple[str, bool]]) -> re.Pattern[str] | None:
    """Return a pattern of texts and whether each is quoted; None for one that is not read here."""
    if any(_EXTENDED.search(text) for text, quoted in parts if not quoted):
        return None
    whole = "".join(
        glob.escape(text) if quoted else text.replace("[^", "[!") for text, quoted in parts
    )
    if len(whole) > _LONGEST_TEXT:
        return None
    return re.compile(fnmatch.translate(whole))


# What makes a word a pattern of file names; [...] alone is mostly meant as it stands.
_GLOB = re.compile(r"[*?]|\[.+\]", re.DOTALL)
_WILD = re.compile(r"[*?]")


def is_glob(text: str) -> bool:
    """Return whether a text is a pattern of file names, were none of it quoted."""
    return _GLOB.search(text) is not None


def is_wild(parts: Sequence[tuple[str, bool]]) -> bool:
    """Return whether ``*`` or ``?`` stands in a word, without quotes."""
    return any(_WILD.search(text) for text, quoted in parts if not quoted)


def glob_of(parts: Sequence[tuple[str, bool]]) -> str | None:
    """Return the pattern of file names that a word is; None for one that is not read here.

    parts: its texts, and whether each is quoted. A word without wildcards of its own is no pattern:
    then that is its text.
    """
    if any(_EXTENDED.search(text) or "[:" in text for text, quoted in parts if not quoted):
        return None
    return "".join(
        glob.escape(text) if quoted else text.replace("[^", "[!") for text, quoted in parts
    )


# What of a regular expression POSIX and Python read alike: texts, sets, groups, counts.
_CLASSES = {
    "digit": "0-9",
    "alpha": "A-Za-z",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}
_EXPRESSION = re.compile(
    r"(?P<end>\$)|(?P<set>\[\^?(?!:)(?:\[:[a-z]+:\]|[\w .:/@%=,+-])+\])"
    r"|(?P<times>[*+?]|\{\d{1,3}(?:,\d{0,3})?\})|[\w :/@%=,~^.|()-]|\\[].*+?^$(){}|\[/-]",
    re.ASCII,
)
# Each may be tried at each place of a text, for each place of the one in front.
_MOST_REPEATS = 3
_MOST_GROUPS = 2
LONGEST_SEARCHED = 128
_CLASS = re.compile(r"\[:([a-z]+):\]")


def expression(parts: Sequence[tuple[str, bool]]) -> re.Pattern[str] | None:
    """Return what ``=~`` looks for, of texts and whether each is quoted.

    None for one that is not read here: what POSIX and Python may read in two ways, or takes long.
    """
    found: list[str] = []
    repeats = groups = 0
    before = "("  # of which nothing is repeated
    for text, quoted in parts:
        place = 0
        while place < len(text):
            match = None if quoted else _EXPRESSION.match(text, place)
            if match is None and not quoted:
                return None
            part = re.escape(text[place]) if match is None else match.group()
            if match is not None and match["times"] is not None:
                repeats += 1
                once = before in ("(", "|", "^", "again") or (before == ")" and part != "?")
                if once or repeats > _MOST_REPEATS:
                    return None
            elif match is not None and match["set"] is not None:
                if not all(name in _CLASSES for name in _CLASS.findall(part)):
                    return None
                part = _CLASS.sub(lambda of: _CLASSES[of[1]], part)
            groups += match is not None and part == "("
            if groups > _MOST_GROUPS:
                return None
            ends = match is not None and match["end"] is not None
            found.append(r"\Z" if ends else part)
            before = "again" if ends or (match is not None and match["times"]) else part
            place += 1 if match is None else len(match.group())
    try:
        return re.compile("".join(found), re.ASCII | re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        return None


def without(text: str, operator: str, found: re.Pattern[str]) -> str | None:
    """Return the text of ``${A#pattern}``, ``##``, ``%`` or ``%%``; None for one too long."""
    if len(text) > _LONGEST_TEXT:
        return None
    size = len(text)
    if operator[0] == "#":
        lengths = range(size + 1) if operator == "#" else range(size, -1, -1)
        return next((text[n:] for n in lengths if found.match(text[:n])), text)
    lengths = range(size + 1) if operator == "%" else range(size, -1, -1)
    return next((text[: size - n] for n in lengths if found.match(text[size - n :])), text)


def replaced(text: str, operator: str, found: re.Pattern[str], by: str) -> str | None:
    """Return the text of ``${A/pattern/by}``, ``//``, ``/#`` or ``/%``; None for one too long.

    It replaces the longest match at each place.
    """
    if len(text) > _LONGEST_TEXT // 4:
        return None
    if found.match("") and operator in ("/#", "/%"):
        return by + text if operator == "/#" else text + by
    pieces: list[str] = []
    position = 0
    while position <= len(text):
        ends = [len(text)] if operator == "/%" else range(len(text), position, -1)
        end = next((end for end in ends if found.match(text[position:end])), None)
        if end is not None and end > position:
            pieces.append(by)
            position = end
            if operator != "//":
                break
        elif operator == "/#" or position == len(text):
            break
        else:
            pieces.append(text[position])
            position += 1
    return "".join(pieces) + text[position:]


def braced(pieces: Sequence[Piece]) -> list[list[Piece]] | None:
    """Return the words that ``a{b,c}{1..3}`` makes; None for more than anybody writes."""
    atoms: list[str | Piece] = []
    for piece in pieces:
        if piece.kind == "text" and not piece.quoted:
            atoms += piece.text
        else:
            atoms.append(piece)
    if len(atoms) > _LONGEST_BRACES:
        return None
    words = _expanded(atoms, 0)
    return None if words is None else [_pieces(word) for word in words]


def _pieces(atoms: Sequence[str | Piece]) -> list[Piece]:
    found: list[Piece] = []
    for atom in atoms:
        if isinstance(atom, Piece):
            found.append(atom)
        elif found and found[-1].kind == "text" and not found[-1].quoted:
            found[-1] = found[-1]._replace(text=found[-1].text + atom)
        else:
            found.append(Piece("text", atom))
    return found


def _expanded(atoms: Sequence[str | Piece], depth: int) -> list[list[str | Piece]] | None:
    if depth > 20:
        return None
    for start, atom in enumerate(atoms):
        if atom != "{":
            continue
        commas, end, level = [start], 0, 0
        for index in range(start, len(atoms)):
            if atoms[index] == "{":
                level += 1
            elif atoms[index] == "}":
                level -= 1
                if not level:
                    end = index
                    break
            elif atoms[index] == "," and level == 1:
                commas.append(index)
        if not end:
            continue
        inner = atoms[start + 1 : end]
        if len(commas) > 1:
            ends = [*commas[1:], end]
            choices: list[list[str | Piece]] = []
            for first, last in zip(commas, ends, strict=True):
                some = _expanded(atoms[first + 1 : last], depth + 1)
                if some is None:
                    return None
                choices += some
        elif all(isinstance(atom, str) for atom in inner) and (
            numbers := _sequence("".join(str(atom) for atom in inner))
        ):
            choices = [list(number) for number in numbers]
        else:
            continue
        behind = _expanded(atoms[end + 1 :], depth + 1)
        if behind is None or len(choices) * len(behind) > _MOST_WORDS:
            return None
        return [[*atoms[:start], *choice, *rest] for choice in choices for rest in behind]
    return [list(atoms)]


def _sequence(text: str) -> list[str]:
    """Return the words of ``1..8``, ``01..10``, ``8..1..2`` or ``a..e``; none for anything else."""
    match = _SEQUENCE.fullmatch(text)
    if match is None:
        return []
    first, last, step, begin, end = match.groups()
    if begin:
        low, high = ord(begin), ord(end)
        codes = range(low, high + 1) if low <= high else range(low, high - 1, -1)
        return [chr(code) for code in codes]
    low, high, by = int(first), int(last), abs(int(step or 1)) or 1
    if abs(high - low) // by >= _MOST_WORDS:
        return []
    numbers = range(low, high + 1, by) if low <= high else range(low, high - 1, -by)
    padded = any(re.match(r"-?0\d", part) for part in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]
