"""What written words become once variables are known: none, one, or several words each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.launches.shell_arithmetic import arithmetic
from preflight.launches.shell_forms import Form
from preflight.launches.shell_words import Part, written
from preflight.launches.source import Origin, Word
from preflight.launches.variables import Variables

# Characters that all expansions of one reading may add: ``A=$A$A`` in a row doubles each time.
LARGEST_EXPANSION = 2**20

# An element of an array costs as much as so many characters.
ELEMENT_COSTS = 32
# Subshells within subshells further in share their variables.
DEEPEST_SUBSHELL = 8

_BLANKS = re.compile(r"[ \t\n]+")


class Budget:
    """Characters that expansions may still add, in a reading and all that it reads inside.

    forms: the words that were taken apart in it.
    """

    def __init__(self) -> None:
        self.left = LARGEST_EXPANSION
        self.forms: dict[str, Form | None] = {}

    def spend(self, characters: int) -> bool:
        self.left -= characters
        return self.left >= 0


class Shell:
    """What a shell holds while its script goes on: variables, arrays, and what it exports."""

    def __init__(self, variables: Variables, budget: Budget) -> None:
        self.variables = variables
        self.budget = budget
        self.arrays: dict[str, tuple[Word, ...]] = {}
        # $1, $2, ...: a function's or those that set gave; None for those of the script itself.
        self.parameters: tuple[Word, ...] | None = None
        self.export_all = False
        self.changed: list[str] = []  # names, in subshells
        self.subshells: list[tuple[int, int] | None] = []

    def assign(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        if self.export_all and word is not None:
            exported = True
        self.variables.put(name, word, exported)
        if self.subshells:
            self.changed.append(name)

    def parameter(self, number: int) -> Word | None:
        """What ``$1`` is: a word of no text where there is none, None for the script's own."""
        for index, word in enumerate((self.parameters or ())[:number], start=1):
            if word.unresolved and word.text.startswith("$"):  # it may be several words, or none
                own = word.unresolved[0] in ("$@", "$*")
                return None if own else Word(f"${number}", word.origin, word.unresolved)
            if index == number:
                return word
        return None if self.parameters is None else Word("", Origin("shell"))

    def enter(self) -> None:
        """A subshell begins."""
        deep = len(self.subshells) >= DEEPEST_SUBSHELL
        self.subshells.append(None if deep else (self.variables.now, len(self.changed)))

    def leave(self) -> None:
        """A subshell ends, and with it what was changed there."""
        if self.subshells and (mark := self.subshells.pop()):
            self.variables.back_to(mark[0], self.changed[mark[1] :])

    def expand(self, form: Form, origin: Origin) -> list[Word]:
        """The words that a written word becomes."""
        if form.literal is not None:
            return [tuple.__new__(Word, (form.literal, origin, ()))]
        if form.joins and (word := self.joined(form, origin, split=True)):
            return [word]
        expansion = _Expansion(self, origin, split=True)
        if form.braces:
            expansion.keep(written(form.parts), ("{...}",))
        else:
            expansion.add(form.parts, inner=False)
        expansion.close()
        return expansion.words

    def value(self, form: Form, origin: Origin) -> Word:
        """The word that stands behind an assignment's ``=``, or in a heredoc."""
        if form.literal is not None:
            return tuple.__new__(Word, (form.literal, origin, ()))
        if form.joins and (word := self.joined(form, origin, split=False)):
            return word
        expansion = _Expansion(self, origin, split=False)
        expansion.add(form.parts, inner=False)
        expansion.close()
        return expansion.words[0]

    def joined(self, form: Form, origin: Origin, split: bool) -> Word | None:
        """The one word that texts and variables make; None where they may make more, or none.

        Most words are of this kind; what a long way round finds out, this finds out too.
        """
        pieces: list[str] = []
        names: list[str] = []
        budget = self.budget
        for kind, text, quoted, name, _, _ in form.parts:
            if kind == "text":
                pieces.append(text)
                continue
            word = self.variables.get(name)
            if word is None:
                if name in self.arrays or self.variables.was_unset(name):
                    return None
                pieces.append(text)
                names.append(name)
                continue
            value, _, unresolved = word
            if split and not quoted and (not value or _BLANKS.search(value)):
                return None
            budget.left -= len(value) + len(unresolved)
            if budget.left < 0:
                pieces.append(text)
                names.append(name)
            else:
                pieces.append(value)
                names += unresolved
        unique = tuple(dict.fromkeys(names)) if names else ()
        return tuple.__new__(Word, ("".join(pieces), origin, unique))


class _Expansion:
    def __init__(self, shell: Shell, origin: Origin, split: bool) -> None:
        self.shell = shell
        self.origin = origin
        self.split = split
        self.words: list[Word] = []
        self.pieces: list[str] = []
        self.unresolved: list[str] = []
        self.open = not split

    def close(self) -> None:
        if self.open:
            names = tuple(dict.fromkeys(self.unresolved)) if self.unresolved else ()
            word = ("".join(self.pieces), self.origin, names)
            self.words.append(tuple.__new__(Word, word))
        self.pieces, self.unresolved, self.open = [], [], False

    def keep(self, text: str, unresolved: Sequence[str] = ()) -> None:
        self.pieces.append(text)
        self.unresolved += unresolved
        self.open = True

    def fields(self, text: str) -> None:
        """Text from an unquoted expansion: blanks in it end words."""
        if not self.split:
            self.keep(text)
            return
        for index, piece in enumerate(_BLANKS.split(text)):
            if index:
                self.close()
            if piece:
                self.keep(piece)

    def add(self, parts: Sequence[Part], inner: bool) -> None:
        for part in parts:
            if part.kind == "text":
                if inner and not part.quoted:
                    self.fields(part.text)
                elif part.text or part.quoted:
                    self.keep(part.text)
            elif part.kind == "variable":
                self.variable(part)
            elif part.kind == "array" and part.name in self.shell.arrays:
                self.array(part, self.shell.arrays[part.name])
            elif part.kind == "unknown" and self.shell.parameters is not None:
                self.special(part)
            elif part.kind == "arithmetic" and (number := self.sum(part)) is not None:
                self.keep(number)
            else:
                self.keep(part.text, (part.name,))

    def special(self, part: Part) -> None:
        """``$@`` and ``$1`` of a function, and what else is not known."""
        name, given = part.name.strip("${}"), self.shell.parameters or ()
        if name in ("@", "*"):
            self.array(part._replace(operator=f"[{name}]"), given)
        elif name.isdecimal() and name != "0" and (word := self.shell.parameter(int(name))):
            self.value(part, word)
        elif name == "#" and not any(word.unresolved for word in given):
            self.keep(str(len(given)))
        else:
            self.keep(part.text, (part.name,))

    def value(self, part: Part, word: Word) -> None:
        if not self.shell.budget.spend(len(word.text) + len(word.unresolved)):
            self.keep(part.text, (part.name,))
            return
        # What is not known keeps its blanks: ``$(nproc --all)`` is one word until somebody runs it.
        if part.quoted or word.unresolved:
            self.keep(word.text, word.unresolved)
        else:
            self.fields(word.text)

    def variable(self, part: Part) -> None:
        variables = self.shell.variables
        word = variables.get(part.name)
        if part.name.isdecimal() and self.shell.parameters is not None:
            word = self.shell.parameter(int(part.name))
        if word is not None and not part.operator:
            self.value(part, word)
            return
        if word is None and part.name in self.shell.arrays:
            word = next(iter(self.shell.arrays[part.name]), None)
        colon, action = part.operator.startswith(":"), part.operator[-1:]
        missing = word is None or (colon and not word.text and not word.unresolved)
        if action == "+":
            self.add([] if missing else part.default, inner=not part.quoted)
            self.open = self.open or part.quoted
        elif missing and action in ("-", "="):
            if action == "=":
                inner = _Expansion(self.shell, self.origin, split=False)
                inner.add(part.default, inner=False)
                inner.close()
                self.shell.assign(part.name, inner.words[0])
                self.value(part, inner.words[0])
            else:
                self.add(part.default, inner=not part.quoted)
                self.open = self.open or part.quoted
        elif word is not None:
            self.value(part, word)
        elif variables.was_unset(part.name) and not action:
            self.open = self.open or part.quoted
        else:
            self.keep(part.text, (part.name,))

    def array(self, part: Part, elements: tuple[Word, ...]) -> None:
        # Each use of a long array is paid for before it is walked through.
        if not self.shell.budget.spend(ELEMENT_COSTS * len(elements)):
            self.keep(part.text, (part.name,))
            return
        if part.operator == "[*]" and part.quoted:
            text = " ".join(word.text for word in elements)
            names = tuple(name for word in elements for name in word.unresolved)
            self.value(part, Word(text, self.origin, names))
            return
        for index, word in enumerate(elements):
            if index and self.split:
                self.close()
            elif index:
                self.keep(" ")
            self.value(part, word)

    def sum(self, part: Part) -> str | None:
        def value(name: str) -> str | None:
            word = self.shell.variables.get(name)
            return None if word is None else word.text

        return arithmetic(part.text, value)
