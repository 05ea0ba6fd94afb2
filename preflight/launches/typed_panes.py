"""What ``tmux send-keys`` and screen's stuff type: lines for a shell, which keeps what they set.

Source: tmux(1), "COMMANDS" (targets), send-keys; screen(1), stuff.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from preflight.launches.source import Word

# Options of tmux itself and of send-keys that take the next word.
_OWN = frozenset("-c -f -L -S -T".split())
_VALUED = frozenset("-c -N -t".split())
_ENTERS = frozenset(("C-j", "C-m", "Enter", "KPEnter"))
_TYPES = {"Space": " ", "Tab": "\t"}
# Names of keys that type no text; C-c gives the line up.
_KEY = re.compile(r"[CMS]-.+|[A-Z][A-Za-z]+|F\d{1,2}")
_MOVES = frozenset(
    "break-pane breakp join-pane joinp kill-pane killp kill-session kill-window killw last-pane "
    "lastp last-window last move-pane movep move-window movew next-window next previous-window "
    "prev respawn-pane respawnp rotate-window rotatew select-pane selectp select-window selectw "
    "swap-pane swapp swap-window swapw".split()
)
# Lines behind which a shell of another place, or of another user, takes the next ones.
_ENTERED = re.compile(
    r"\s*(?:exec\s+)?(?:ssh|docker|podman|kubectl|srun|salloc|apptainer|singularity|su|sudo)\b"
)
# What ends a line in the text of screen's stuff.
_LINE_ENDS = re.compile(r"\^M|\\(?:0?15|0?12|n|r)|\r")
# Each is compared with all others: of more than anybody opens nothing is known.
_MOST_PANES = 256


class Typed(NamedTuple):
    """A line for the shell of a pane. target: as ``-t`` says it; "" for the current pane."""

    target: Word | None
    line: Word

    @property
    def key(self) -> str:
        return "" if self.target is None else self.target.text


class Panes:
    """Which panes have shells of their own, as the targets tell them apart.

    states: by target, how often its shell is another one; None where it may be any.
    """

    def __init__(self) -> None:
        self.states: dict[str, int | None] = {}
        self.pending: dict[str, Word] = {}
        self.count = 0

    def typed(self, words: Sequence[Word]) -> tuple[list[Typed], list[Word]]:
        """Take a command of tmux in; return its lines, and its words without send-keys."""
        lines: list[Typed] = []
        start = 1
        while start < len(words) and words[start].text[:1] == "-":
            start += 2 if words[start].text in _OWN else 1
        left: list[Word] = []
        command: list[Word] = []
        for word in (*words[start:], None):
            if word is not None and word.text not in (";", r"\;"):
                command.append(word)
                continue
            verb = command[0].text if command else ""
            if verb in ("send", "send-keys"):
                lines += self._keys(command)
            elif command:
                self._moved(verb, [each.text for each in command])
                left += command
            command = []
        return lines, [*words[:start], *left] if left else []

    def shell(self, typed: Typed) -> int | None:
        """Return which shell gets a line; None for one of which nobody knows what it holds."""
        if typed.target is not None and typed.target.unresolved:
            return None
        key = typed.key
        if key not in self.states:
            if len(self.states) >= _MOST_PANES:
                return None
            self.count += 1
            near = any(_overlap(key, other) for other in self.states)
            self.states[key] = None if near else self.count
        return self.states[key]

    def entered(self, typed: Typed) -> None:
        """Take in that a line may have begun a shell in another place."""
        if _ENTERED.match(typed.line.text) and typed.key in self.states:
            self.states[typed.key] = None

    def _keys(self, words: Sequence[Word]) -> list[Typed]:
        target: Word | None = None
        index, literal = 1, False
        while index < len(words) and words[index].text[:1] == "-":
            if words[index].text == "-t":
                target = words[index + 1] if index + 1 < len(words) else None
            literal = literal or words[index].text == "-l"
            index += 2 if words[index].text in _VALUED else 1
        found: list[Typed] = []
        for word in words[index:]:
            key = Typed(target, word).key
            held = self.pending.get(key)
            if word.text in _ENTERS and not literal:
                if held is not None:
                    found.append(Typed(target, held))
                self.pending.pop(key, None)
                continue
            text = word.text if literal else _TYPES.get(word.text, word.text)
            if word.text not in _TYPES and not literal and _KEY.fullmatch(word.text):
                if word.text == "C-c":
                    self.pending.pop(key, None)
                continue
            found += self._held(target, word, text)
        return found

    def _held(self, target: Word | None, word: Word, text: str) -> list[Typed]:
        """Put ``text`` behind what is typed already; return what its last line end ends."""
        key = Typed(target, word).key
        held = self.pending.get(key)
        names = (*(held.unresolved if held else ()), *word.unresolved)
        ended, newline, rest = f"{held.text if held else ''}{text}".rpartition("\n")
        self.pending[key] = (held or word)._replace(text=rest, unresolved=names)
        return [Typed(target, word._replace(text=ended, unresolved=names))] if newline else []

    def stuffed(self, words: Sequence[Word]) -> list[Typed] | None:
        """Return the lines of ``screen -S NAME -X stuff TEXT``; None for another command."""
        texts = [word.text for word in words]
        if "-X" not in texts[:-2] or texts[texts.index("-X") + 1] != "stuff":
            return None
        at = texts.index("-X")
        given = {flag.text: word for flag, word in pairwise(words[1:at])}
        target, window = given.get("-S"), given.get("-p")
        if target is not None and window is not None:
            names = (*target.unresolved, *window.unresolved)
            target = Word(f"{target.text}:{window.text}", target.origin, names)
        found: list[Typed] = []
        for word in words[at + 2 :]:
            found += self._held(target, word, _LINE_ENDS.sub("\n", word.text))
        return found

    def _moved(self, verb: str, texts: Sequence[str]) -> None:
        """Forget what the targets stand for that another pane may have become."""
        target = next((b for a, b in pairwise(texts) if a == "-t"), "")
        session = target.partition(":")[0]
        if verb in ("new-session", "new"):
            session = next((b for a, b in pairwise(texts) if a == "-s"), "")
            self._drop(lambda key: key.partition(":")[0] in ("", session))
        elif verb in ("neww", "new-window") and "-d" not in texts:
            self._drop(lambda key: key in ("", session, f"{session}:"))
        elif verb in ("split-window", "splitw") and "-d" not in texts:
            self._drop(lambda key: key == target)
            self._open(lambda key: "." not in key and _overlap(key, target))
        elif verb in _MOVES:
            self._open(lambda key: "." not in key and key.partition(":")[0] in ("", session))

    def _drop(self, which: Callable[[str], bool]) -> None:
        for key in [key for key in self.states if which(key)]:
            del self.states[key]

    def _open(self, which: Callable[[str], bool]) -> None:
        for key in [key for key in self.states if which(key)]:
            self.states[key] = None


def _overlap(one: str, other: str) -> bool:
    """Return whether two targets, ``s`` and ``s:0.1``, may stand for one pane."""
    if "" in (one, other):
        return True
    short, long = sorted((one.rstrip(":."), other.rstrip(":.")), key=len)
    return long == short or long.startswith((f"{short}:", f"{short}."))
