"""A node's own name in its sentences, so that what two nodes say of themselves is the same."""

from __future__ import annotations

import re
from collections.abc import Collection

# Written in its place.
ITSELF = "the node"


class Itself:
    """The node's names, where its sentences may hold them."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = tuple(names)
        longest_first = sorted(names, key=len, reverse=True)
        whole = "|".join(re.escape(name) for name in longest_first)
        self._pattern = re.compile(rf"(?<![\w.-])(?:{whole})(?![\w-]|\.\w)")

    def within(self, *texts: str) -> bool:
        return any(name in text for name in self._names for text in texts)

    def unnamed(self, text: str) -> str:
        return self._pattern.sub(ITSELF, text) if self.within(text) else text


def itself_in(content: bytes, node: str, host: str) -> Itself | None:
    """None where none of its sentences can hold one of its names.

    Counting them in the whole text spares looking into each of hundreds of sentences.
    """
    names = {name for name in (node, host) if len(name) > 1}
    for name in names:
        if content.count(name.encode("utf-8", "surrogatepass")) > (node, host).count(name):
            return Itself(names)
    return None


def unnamed(itself: Itself | None, text: str) -> str:
    return text if itself is None else itself.unnamed(text)
