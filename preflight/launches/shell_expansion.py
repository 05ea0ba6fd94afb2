"""What written words become once variables are known: none, one, or several words each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from preflight.launches.shell_words import Piece, WrittenWord, written
from preflight.launches.source import Origin, Word
from preflight.launches.variables import Variables

# Characters that all expansions of one reading may add: ``A=$A$A`` in a row doubles each time.
LARGEST_EXPANSION = 2**20

# An element of an array costs as much as so many characters.
ELEMENT_COSTS = 32
# Subshells within subshells further in share their variables.
DEEPEST_SUBSHELL = 8

_BLANKS = re.compile(r"[ \t\n]+")
# Longer sums are left as written.
_LONGEST_FORMULA = 200
_IN_FORMULA = re.compile(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_FORMULA = re.compile(r"[0-9 \t+\-*/%()<>]+", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


class Budget:
    """Characters that expansions may still add, in a reading and all that it reads inside."""

    def __init__(self) -> None:
        self.left = LARGEST_EXPANSION

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

    def expand(self, word: WrittenWord, origin: Origin) -> list[Word]:
        """Return the words that a written word becomes."""
        if len(word.pieces) == 1 and word.pieces[0].kind == "text" and not word.braces:
            return [Word(word.pieces[0].text, origin)]  # most are so
        expansion = _Expansion(self, origin, split=True)
        if word.braces:
            expansion.keep(written(word.pieces), ("{...}",))
        else:
            expansion.add(word.pieces, inner=False)
        expansion.close()
        return expansion.words

    def value(self, pieces: Sequence[Piece], origin: Origin) -> Word:
        """Return the word that stands behind an assignment's ``=``, or in a heredoc."""
        expansion = _Expansion(self, origin, split=False)
        expansion.add(pieces, inner=False)
        expansion.close()
        return expansion.words[0]


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
            self.words.append(Word("".join(self.pieces), self.origin, names))
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
        for index, field in enumerate(_BLANKS.split(text)):
            if index:
                self.close()
            if field:
                self.keep(field)

    def add(self, pieces: Sequence[Piece], inner: bool) -> None:
        for piece in pieces:
            if piece.kind == "text":
                if inner and not piece.quoted:
                    self.fields(piece.text)
                elif piece.text or piece.quoted:
                    self.keep(piece.text)
            elif piece.kind == "variable":
                self.variable(piece)
            elif piece.kind == "array" and piece.name in self.shell.arrays:
                self.array(piece, self.shell.arrays[piece.name])
            elif piece.kind == "unknown" and self.shell.parameters is not None:
                self.special(piece)
            elif piece.kind == "arithmetic" and (number := self.sum(piece)) is not None:
                self.keep(number)
            else:
                self.keep(piece.text, (piece.name,))

    def special(self, piece: Piece) -> None:
        """``$@`` and ``$1`` of a function, and what else is not known."""
        name, given = piece.name.strip("${}"), self.shell.parameters or ()
        if name in ("@", "*"):
            self.array(piece._replace(operator=f"[{name}]"), given)
        elif name.isdecimal() and name != "0" and (word := self.shell.parameter(int(name))):
            self.value(piece, word)
        elif name == "#" and not any(word.unresolved for word in given):
            self.keep(str(len(given)))
        else:
            self.keep(piece.text, (piece.name,))

    def value(self, piece: Piece, word: Word) -> None:
        if not self.shell.budget.spend(len(word.text) + len(word.unresolved)):
            self.keep(piece.text, (piece.name,))
            return
        # What is not known keeps its blanks: ``$(nproc --all)`` is one word until somebody runs it.
        if piece.quoted or word.unresolved:
            self.keep(word.text, word.unresolved)
        else:
            self.fields(word.text)

    def variable(self, piece: Piece) -> None:
        variables = self.shell.variables
        word = variables.get(piece.name)
        if piece.name.isdecimal() and self.shell.parameters is not None:
            word = self.shell.parameter(int(piece.name))
        if word is not None and not piece.operator:
            self.value(piece, word)
            return
        if word is None and piece.name in self.shell.arrays:
            word = next(iter(self.shell.arrays[piece.name]), None)
        colon, action = piece.operator.startswith(":"), piece.operator[-1:]
        missing = word is None or (colon and not word.text and not word.unresolved)
        if action == "+":
            self.add([] if missing else piece.default, inner=not piece.quoted)
            self.open = self.open or piece.quoted
        elif missing and action in ("-", "="):
            if action == "=":
                inner = _Expansion(self.shell, self.origin, split=False)
                inner.add(piece.default, inner=False)
                inner.close()
                self.shell.assign(piece.name, inner.words[0])
                self.value(piece, inner.words[0])
            else:
                self.add(piece.default, inner=not piece.quoted)
                self.open = self.open or piece.quoted
        elif word is not None:
            self.value(piece, word)
        elif variables.was_unset(piece.name) and not action:
            self.open = self.open or piece.quoted
        else:
            self.keep(piece.text, (piece.name,))

    def array(self, piece: Piece, elements: tuple[Word, ...]) -> None:
        # Each use of a long array is paid for before it is walked through.
        if not self.shell.budget.spend(ELEMENT_COSTS * len(elements)):
            self.keep(piece.text, (piece.name,))
            return
        if piece.operator == "[*]" and piece.quoted:
            text = " ".join(word.text for word in elements)
            names = tuple(name for word in elements for name in word.unresolved)
            self.value(piece, Word(text, self.origin, names))
            return
        for index, word in enumerate(elements):
            if index and self.split:
                self.close()
            elif index:
                self.keep(" ")
            self.value(piece, word)

    def sum(self, piece: Piece) -> str | None:
        def value(name: str) -> str | None:
            word = self.shell.variables.get(name)
            return None if word is None else word.text

        return arithmetic(piece.text, value)


def arithmetic(text: str, value: Callable[[str], str | None]) -> str | None:
    """Return what ``$((...))`` becomes; None where ``value`` knows no number for a name in it."""
    if len(text) > _LONGEST_FORMULA:
        return None

    def number(match: re.Match[str]) -> str:
        known = value(match.group(1))
        return known if known is not None and _NUMBER.fullmatch(known) else "?"

    formula = _IN_FORMULA.sub(number, text[3:-2]).strip()
    # A number that begins with 0 is octal to bash; nobody means it, so it is not worked out.
    if not _FORMULA.fullmatch(formula):
        return None
    result = _sum(formula)
    return None if result is None else str(result)


def _sum(formula: str) -> int | None:
    """Integers as C works them out; None for what does not fit into 64 bits, or is no such sum."""
    import ast  # only scripts with sums in them pay for it

    def compute(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            result = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            result = compute(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        elif isinstance(node, ast.BinOp):
            result = binary(node.op, compute(node.left), compute(node.right))
        else:
            raise ValueError("no sum of integers")
        if not -(2**63) <= result < 2**63:
            raise ValueError("more than 64 bits")
        return result

    def binary(operator: ast.operator, left: int, right: int) -> int:
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.Mult):
            return left * right
        if isinstance(operator, ast.LShift | ast.RShift) and 0 <= right < 64:
            return left << right if isinstance(operator, ast.LShift) else left >> right
        if isinstance(operator, ast.Div | ast.Mod):
            # C rounds towards zero, Python downwards.
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if isinstance(operator, ast.Div) else left - quotient * right
        raise ValueError("no operator of integers")

    try:
        return compute(ast.parse(formula, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ArithmeticError):
        return None
