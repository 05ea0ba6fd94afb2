"""A launch without its secrets, for a ConfigMap, which everybody in a namespace may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.capture.secrets import REMOVED, clean_text, is_secret


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
