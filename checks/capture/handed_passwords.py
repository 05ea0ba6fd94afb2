"""Where in a text stands what is handed to a program that reads a password, or to a secret's file.

By a pipe, a here-document, a here-string or ``< <(...)``: of itself it is a word like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from checks.capture.secret_names import is_secret_file

QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
# Commands that print their words.
PRINTING = r"(?:echo|printf|yes)[ \t]+(?:-[\w-]+[ \t]+)?"
# A backslash of a word. The \n of a script in JSON ends a line; that of tr -d '\n' does not.
_BACKSLASH = r"\\(?!\n|n[^\s\"'])"
# A character of a command, where 2>&1 is a part of it; of its words; the bar, which may be quoted.
_REST = rf"(?:>&|&>|[^\n;&|\\]|{_BACKSLASH})"
_WORDS = rf"(?:{_BACKSLASH}[^\n]|(?![\"']\|[\"']){QUOTED}|[^\n;&|\"'\\>]|>&|&>)"
_BREAK = r"\\\n|\\\\\\n"
_BAR = rf"(?:[ \t]|{_BREAK}){{0,8}}[\"']?(?<!\|)\|(?!\|)&?[\"']?(?:[ \t]|{_BREAK}|\n|\\n){{0,8}}"
# Where a command begins, also in a script that is a text in JSON, behind its \\n.
_START = r"(?:(?<![\w./$\-])|(?<=\\n))"
_READING = (
    rf"\b(?:chg?passwd|smbpasswd|kinit|cryptsetup)\b|--password-stdin\b"
    rf"|\bsudo\b{_REST}{{0,80}}?[ \t](?:-\w*S\w*|--stdin)(?![\w\-])"
    rf"|\bpasswd\b{_REST}{{0,80}}?[ \t]--stdin\b"
    rf"|\bauth[ \t]+login\b{_REST}{{0,80}}?--with-token\b"
    r"|\b(?:huggingface-cli|hf[ \t]+auth|wandb|vault|oc)[ \t]+login\b|--passphrase-fd[ \t=]+0\b"
    rf"|\bopenssl\b{_REST}{{0,80}}?[ \t]-pass(?:in|out)?[ \t]+(?:stdin|fd:0)\b"
)
# A program that asks for one twice: /etc/passwd is a file.
_PASSWD = r"(?:sudo[ \t]+(?:-\S+[ \t]+)*)?(?:/\S*/)?passwd\b(?![\w./\-])"
_FILTER = r"(?:sudo[ \t]+)?(?:base64|cat|cut|head|rev|sed|tail|tee|tr)\b"
_SIGNS = "passwd sudo kinit cryptsetup --pass login openssl".split()
# How many commands of a pipeline are looked at, and characters of a command, a line, a document.
_MOST_COMMANDS, _MOST_OF_COMMAND, _MOST_OF_LINE, _MOST_OF_DOCUMENT = 6, 200, 400, 20_000


class HandedPassword(NamedTuple):
    """A part of a text, and what to call it."""

    start: int
    end: int
    name: str = "a password"


def handed(text: str) -> list[HandedPassword]:
    """Return what is handed to programs and files that hold secrets, in order, none in another."""
    lower = text.lower()
    found: list[HandedPassword] = []
    if any(sign in lower for sign in _SIGNS):
        found += _piped(text) if "|" in text else ()
        found += _on_a_line(text) if "<<" in text or "<(" in text else ()
    found += _to_files(text) if ">" in text or "tee" in lower else ()
    kept: list[HandedPassword] = []
    for one in sorted(found, key=lambda each: (each.start, -each.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
    return kept


def _piped(text: str) -> Iterator[HandedPassword]:
    """Yield what is printed in front of a program that reads a password, or of a filter before it.

    Last where the program that prints is not seen: a line that is cut, words of an env file.
    """
    in_group = rf"{_START}[({{][ \t]*{PRINTING}(?P<value>[^(){{}}\n]{{1,240}})[)}}]"
    printed = rf"{_START}{PRINTING}(?P<value>{_WORDS}{{1,240}})"
    alone = r"(?<![^\s\"'=])(?<!cat )(?<!tee )(?P<value>[^\s;&|/]{6,80})(?=[ \t\"'\\]*\|)"
    for words in (in_group, printed, alone):
        for match in _compiled(words).finditer(text):
            behind = _compiled(_BAR).match(text, match.end())
            if behind and _is_read(text, behind.end(), any_between=words is not alone):
                yield HandedPassword(*_trimmed(text, *match.span("value")))


def _is_read(text: str, start: int, *, any_between: bool) -> bool:
    """Return whether the pipeline that goes on here has a program that reads a password."""
    for _ in range(_MOST_COMMANDS):
        command = _compiled(rf"{_REST}{{0,{_MOST_OF_COMMAND}}}").match(text, start)
        if command is None:
            return False
        if _compiled(f"{_READING}|^{_PASSWD}").search(command[0]):
            return True
        behind = _compiled(_BAR).match(text, command.end())
        if behind is None or not (any_between or _compiled(_FILTER).match(command[0])):
            return False
        start = behind.end()
    return False


def _on_a_line(text: str) -> Iterator[HandedPassword]:
    """Yield here-documents, here-strings and ``<(...)`` of lines with a program that reads one."""
    of_string = rf"<<<[ \t]*(?P<value>{QUOTED}|(?:(?!\\n)[^\s;&|\"'])+)"
    of_output = rf"<\({PRINTING}(?P<value>[^\n()]+)\)"
    # A document whose lines are words of one: chpasswd <<EOF root:x EOF.
    of_words = (
        rf"(?<!<)<<(?!<)-?[\"']?(?P<end>[A-Za-z_]\w*)[\"']?(?:{_BAR}{_REST}{{0,80}}?(?:{_READING}))?"
        r"[ \t]+(?P<value>[^\n|]{1,400}?)[ \t]+(?P=end)\b"
    )
    for words in (of_string, of_output, of_words):
        for match in _compiled(words).finditer(text):
            if _reads_on_line(text, match.start()):
                yield HandedPassword(*match.span("value"))
    # Also of a script that is a text in JSON, whose lines end with a backslash and an n.
    end_of_line = r"(?:\n|\\n)"
    of_document = (
        r"(?<!<)<<(?!<)-?[ \t]*\\?(?P<quote>[\"']?)(?P<end>[A-Za-z_]\w*)(?P=quote)(?=[\s|;&)>\\])"
        rf"(?:(?!\\n|\b(?P=end)\b)[^\n]){{0,{_MOST_OF_LINE}}}{end_of_line}"
    )
    done = 0
    for match in _compiled(of_document).finditer(text):
        if match.start() < done or not _reads_on_line(text, match.start()):
            continue
        start, most = match.end(), match.end() + _MOST_OF_DOCUMENT
        last = re.compile(rf"{end_of_line}(?:[ \t]|\\t)*{match['end']}\b").search(
            text, start - 1, most
        )
        if last is None and most < len(text):
            continue  # no document of passwords, nor one that is cut
        done = len(text) if last is None else max(start, last.start())
        for line in _compiled(r"(?:(?!\\n)[^\n])+").finditer(text, start, done):
            yield HandedPassword(*_trimmed(text, *line.span()))


def _reads_on_line(text: str, at: int) -> bool:
    """Return whether the line around this place has a program that reads a password."""
    start = max(0, at - _MOST_OF_LINE)
    for end in ("\n", "\\n"):
        last = text.rfind(end, start, at)
        start = start if last < 0 else last + len(end)
    line = _compiled(rf"(?:(?!\\n[^\s\"'])[^\n]){{0,{2 * _MOST_OF_LINE}}}").match(text, start)
    return line is not None and _compiled(_READING).search(line[0]) is not None


def _to_files(text: str) -> Iterator[HandedPassword]:
    """Yield what is printed to a file whose path is named for secrets: /run/secrets/redis."""
    words = (
        rf"{_START}{PRINTING}(?P<value>{_WORDS}{{1,240}})"
        rf"(?:{_BAR}(?:sudo[ \t]+)?(?:tee\b(?:[ \t]+-\w+)*|cat[ \t]*>{{1,2}})|>{{1,2}})[ \t]*[\"']?"
        r"(?P<path>(?:(?!\\n)[^\s;&|\"'<>])+)"
    )
    for match in _compiled(words).finditer(text):
        if is_secret_file(match["path"]):
            yield HandedPassword(*_trimmed(text, *match.span("value")), match["path"])


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of a value without the blanks around it."""
    value = text[start:end].rstrip(" \t\\;")
    return end - len(text[start:end].lstrip()), start + len(value)


@cache
def _compiled(words: str) -> re.Pattern[str]:
    """Compile what most texts do not need: it takes as long as all else here."""
    return re.compile(words)
