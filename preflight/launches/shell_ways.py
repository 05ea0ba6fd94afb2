"""What a variable or an array is behind a condition that nothing decides: one of several values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.launches.shell_state import Key, doubts_of, few, plain
from preflight.launches.source import Word, brief

# What is not a setting of a launch: where the shell is, and how it looks for programs.
_OF_SHELL = frozenset("IFS OLDPWD PATH PWD LD_LIBRARY_PATH PYTHONPATH".split())
_MOST_VALUES = 6
NOTHING, _OR = "nothing", " or "


def either_of(key: Key, values: Sequence[object], last: object) -> object:
    """Return the one value that stands for all of ``values`` of a key; ``last`` if none can.

    A variable's word has all values in its text and is not known. An array has the flags of each
    way, with values that are not known; one that is no list of flags stays the last.
    """
    kind, name = key
    if kind == "variable" and name not in _OF_SHELL:
        words = [value[0] if value else None for value in values]  # type: ignore[index]
        # One that is not quoted may be no word, a flag, a setting or several.
        texts = [word.text for word in words if word is not None]
        loose = any(not text or re.search(r"\s|^-|^\w+=", text) for text in texts)
        word = None if loose else _one_of(words, f"${{{name}}}")
        return last if word is None else (word, last[1] if last else True)  # type: ignore[index]
    if kind == "array":
        flags = _flags_of_each(values, name)
        return last if flags is None else flags
    return last


def _one_of(words: Sequence[Word | None], written: str, front: str = "") -> Word | None:
    """Return a word that is one of ``words``, shown as ``written``; None if too many or open."""
    first = next((word for word in words if word is not None), None)
    texts: list[str] = []
    for word in words:
        text = "" if word is None else word.text.removeprefix(front)
        if word is None:
            texts.append(NOTHING)
        elif not word.unresolved:
            texts.append(brief(text) or "''")
        elif text == written and len(word.unresolved) == 1:
            texts += word.unresolved[0].split(_OR)
        else:
            return None
    several = sorted(dict.fromkeys(texts), key=lambda each: each == NOTHING)
    if first is None or len(several) > _MOST_VALUES:
        return None
    name = _OR.join(several)
    doubts = doubts_of(tuple(words))
    return first._replace(text=f"{front}{written}", unresolved=(name,), doubts=few(doubts))


Groups = dict[str, list[Word]]


def _flags_of_each(ways: Sequence[object], name: str) -> tuple[Word, ...] | None:
    """Return an array with the flags of all ways; None if one of them is no list of flags."""
    groups = [_groups(way or ()) for way in ways]  # type: ignore[arg-type]
    known = [each for each in groups if each is not None]
    if len(known) < len(groups):
        return None
    together: list[Word] = []
    for flag in dict.fromkeys(flag for each in known for flag in each):
        each_way = [each.get(flag, []) for each in known]
        most = max(each_way, key=len)
        if all(plain(tuple(each)) == plain(tuple(each_way[0])) for each in each_way):
            together += most
            continue
        attached = "=" in most[0].text
        place = 0 if attached else 1
        words = [each[place] if len(each) > place else None for each in each_way]
        word = _one_of(words, f"${{{name}[{flag}]}}", f"{flag}=" if attached else "")
        if len(most) > place + 1 or (word is None and most[place:]):
            return None
        together += [*most[:place], *filter(None, [word])]
    return tuple(together)


def _groups(words: Sequence[Word]) -> Groups | None:
    """Return each flag with the words behind it, by its name; None if the words are no flags."""
    groups: Groups = {}
    flag = ""
    for word in words:
        if word.text.startswith("-") and not word.unresolved:
            flag = word.flag
            if flag in groups:
                return None
            groups[flag] = []
        if not flag or word.several:
            return None
        groups[flag].append(word)
    return groups
