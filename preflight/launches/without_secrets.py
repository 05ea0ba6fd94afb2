"""A launch without its secrets, for a ConfigMap, which everybody in a namespace may read.

What looks like a secret by its name goes, wherever it stands: the checks need none, and a secret
that is printed once is one no longer. Lines stay where they are, so that findings name them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from preflight.launches.source import is_secret

REMOVED = "(removed)"
_NAME = r"[A-Za-z0-9_.\-]*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)[A-Za-z0-9_.\-]*"
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
# NAME=value and --name=value; --name value; name: value, also in JSON that is quoted in a script.
_ASSIGNED = re.compile(rf"(?i)(?P<name>{_NAME})(?P<gap>=)(?P<value>{_QUOTED}|[^\s;&|\"']+)")
_FLAG = re.compile(
    rf"(?i)(?P<name>--{_NAME})"
    # The next word: of a line, of the next one, of a list in either of YAML's forms.
    r"(?P<gap>[\"']?(?:[ \t]*\\\n[ \t]*|[ \t]*,\s*|[ \t]*\n[ \t]*-[ \t]+|[ \t]+))"
    rf"(?P<value>{_QUOTED}|[^\s;&|\"',\]-][^\s;&|,\]]*)"
)
_MAPPED = re.compile(
    rf"(?i)(?P<name>{_NAME})(?P<gap>\\?[\"']?[ \t]*:[ \t]*)"
    r"(?P<value>\\\"[^\"\n]*\\\"|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s\"'{\[,}\]|>&*][^\"'\n,}\]]*)"
)
# A variable of a Kubernetes container: the name is the value of one field, in either order.
_VALUE = rf"(?P<value>{_QUOTED}|[^\s\"',}}]+)"
_NAMED = re.compile(
    rf"(?i)(?P<gap>name:[ \t]*[\"']?(?P<name>{_NAME})[\"']?[ \t]*(?:,|\n)[\s]*value:[ \t]*){_VALUE}"
)
_NAMED_AFTER = re.compile(
    rf"(?i)value:[ \t]*{_VALUE}(?P<gap>[ \t]*(?:,|\n)[\s]*name:[ \t]*[\"']?(?P<name>{_NAME}))"
)
# Whatever they are called: a password in an address, tokens of a known form, a private key.
_PATTERNS = (
    re.compile(r"(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)"),
    re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})"),
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S
)
_SECRET_KIND = re.compile(r"(?m)^[ \t]*[\"']?kind[\"']?:[ \t]*[\"']?Secret\b")
_DOCUMENT = re.compile(r"(?m)^---[^\n]*\n")


class Public(NamedTuple):
    """removed: the names of what is gone, and ``a Secret`` for an object of that kind."""

    files: Mapping[str, bytes]
    words: tuple[str, ...]
    removed: tuple[str, ...]


def without_secrets(files: Mapping[str, bytes], words: Sequence[str]) -> Public:
    """``words``: of a command, among which a secret may be a flag's value."""
    removed: dict[str, None] = {}
    public = {name: _clean_bytes(content, removed) for name, content in files.items()}
    return Public(public, _clean_words(words, removed), tuple(removed))


def _clean_bytes(content: bytes, removed: dict[str, None]) -> bytes:
    # Latin-1 has every byte, so what is not text comes back as it was.
    return clean_text(content.decode("latin-1"), removed).encode("latin-1")


def clean_text(text: str, removed: dict[str, None]) -> str:
    """Return the text with the values gone; their names are added to ``removed``."""
    text = _without_secret_objects(text, removed)
    text = _PRIVATE_KEY.sub(lambda match: _noted("a private key", match[0], removed), text)
    for pattern in (_NAMED, _NAMED_AFTER, _ASSIGNED, _FLAG, _MAPPED):
        text = pattern.sub(lambda match: _replaced(match, removed), text)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: _noted("what looks like one", match[0], removed), text)
    return text


def _replaced(match: re.Match[str], removed: dict[str, None]) -> str:
    name, value = match["name"], match["value"]
    bare = value.strip("\"'\\").strip()
    # A reference names a secret and is none; nor is what stands for a value that is gone.
    if not is_secret(name) or not bare or bare.startswith("$") or REMOVED in bare:
        return match[0]
    removed[name.lstrip("-.")] = None
    quote = value[0] if value[0] in "\"'" else '\\"' if value.startswith('\\"') else ""
    start, end = match.span("value")
    before, after = match.string[match.start() : start], match.string[end : match.end()]
    # Quoted where it was not: brackets mean something to a shell.
    return f"{before}{quote or chr(39)}{REMOVED}{quote or chr(39)}{after}"


def _noted(what: str, text: str, removed: dict[str, None]) -> str:
    removed[what] = None
    return REMOVED + "\n" * text.count("\n")


def _without_secret_objects(text: str, removed: dict[str, None]) -> str:
    """Objects of the kind Secret become empty lines."""
    if _SECRET_KIND.search(text) is None:
        return text
    starts = [0, *(match.end() for match in _DOCUMENT.finditer(text)), len(text)]
    found = []
    for start, end in pairwise(starts):
        document = text[start:end]
        if _SECRET_KIND.search(document):
            removed["a Secret"] = None
            body, mark, _ = document.rpartition("---") if end < len(text) else (document, "", "")
            tail = f"{mark}\n" if mark else ""
            document = "\n" * (body.count("\n")) + tail
        found.append(document)
    return "".join(found)


def _clean_words(words: Sequence[str], removed: dict[str, None]) -> tuple[str, ...]:
    found: list[str] = []
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and value and is_secret(name):
            removed[name.lstrip("-")] = None
            word = f"{name}={REMOVED}"
        elif before.startswith("--") and "=" not in before and is_secret(before):
            if not word.startswith("-"):
                removed[before.lstrip("-")] = None
                word = REMOVED
        else:
            word = clean_text(word, removed)
        before = word
        found.append(word)
    return tuple(found)
