"""What a condition of a shell comes to, ``[ ]``, ``test`` or ``[[ ]]``, if that is known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.shell_expansion import expand, pattern, value
from preflight.launches.shell_state import ShellState
from preflight.launches.shell_text import Node, Pieces, ShellText
from preflight.launches.source import Origin, SourceNote, Word

_NEVER_SET = regex(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?::?-)?\}?")
_NUMERIC = {f"-{name}": getattr(operator, name) for name in "eq ne lt le gt ge".split()}
_BINARY = frozenset(("=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef", *_NUMERIC))
_UNARY = frozenset(
    "-a -b -c -d -e -f -g -h -k -L -N -O -p -r -s -S -t -u -w -x -G -n -z -v".split()
)
_THERE = frozenset("-e -f -r -s".split())
_INTEGER = regex(r"[+-]?[0-9]{1,18}", re.ASCII)
_COMPOUND = frozenset("binary_expression unary_expression parenthesized_expression".split())
_OPERATORS = frozenset("( ) ! && || [ ] [[ ]] -o".split()) | _BINARY | _UNARY
# Of a regular expression POSIX and Python read these alike: letters, simple sets, + and *, ends.
_EXPRESSION = regex(r"\^?(?:(?:[\w/:@%=,~ -]|\[\^?[\w./:-]+\])[+*]?)*\$?", re.ASCII)
_LONGEST_SEARCHED = 128
_MOST_ITEMS = 60


class Truth(NamedTuple):
    """Whether a condition holds.

    Attributes:
        value: None if nothing decides.
        soft: The value assumes that the script has no argument: the author of ``[ -z "$1" ] &&
            exit`` expects the caller to give one.
        doubts: Undecided conditions that the value depends on.
        by_program: A program decides, and none is run.
        expected: It is this program, which a launch stands behind: it holds where that is all.
        asks: The unset variable that must be empty for the condition, with ! if it must not be.
    """

    value: bool | None
    soft: bool = False
    doubts: tuple[SourceNote, ...] = ()
    by_program: bool = False
    asks: str = ""
    expected: bool = False

    def negated(self) -> Truth:
        if self.value is None:
            other = self.asks[1:] if self.asks[:1] == "!" else f"!{self.asks}"
            return self._replace(asks=other if self.asks else "", expected=False)
        return self._replace(value=not self.value)

    def undoubted(self) -> Truth:
        """Return this truth, or one of value None if it depends on an undecided condition."""
        return self._replace(value=None) if self.doubts else self


TRUE, FALSE, OPEN = Truth(True), Truth(False), Truth(None)
PROGRAM = Truth(None, by_program=True)
GATE = PROGRAM._replace(expected=True)


def both(left: Truth, right: Truth) -> Truth:
    """Return the truth of ``left && right``."""
    for truth in (left, right):
        if truth.value is False:
            return truth
    known = None if left.value is None or right.value is None else True
    return Truth(known, left.soft or right.soft, (*left.doubts, *right.doubts))


def either(left: Truth, right: Truth) -> Truth:
    """Return the truth of ``left || right``."""
    return both(left.negated(), right.negated()).negated()


class _Item(NamedTuple):
    """An operator, or an operand: in ``[ ]`` a word, in ``[[ ]]`` as it is written."""

    operator: str
    word: Word
    pieces: Pieces = ()
    raw: str = ""


class Conditions:
    """Decides the conditions of one shell.

    Args:
        has_file: Tells whether the launch has a file nearby.
    """

    def __init__(self, state: ShellState, has_file: Callable[[str], bool]) -> None:
        self.state, self.has_file = state, has_file

    def command(self, text: ShellText, tree: Node) -> Truth:
        """Return the truth of a ``[ ... ]`` or ``[[ ... ]]`` of the tree."""
        double = tree.children[0].type == "[["
        origin = text.origin(tree)
        items: list[_Item] = []
        self.state.asking = True
        for operand in _flatten(text, tree.children[1:-1]):
            if isinstance(operand, str):
                items.append(_Item(operand, Word(operand, origin)))
            elif double:
                raw = "".join(text.text(each) for each in operand)
                pieces = text.words(operand)[0].pieces
                items.append(_Item("", value(self.state, pieces, origin), pieces, raw))
            else:
                for written in text.words(operand):
                    items += [_Item("", word) for word in expand(self.state, written, origin)]
        self.state.asking = False
        return self._whole(items, double, origin)

    def test(self, argv: Sequence[Word]) -> Truth:
        """Return the truth of ``test ...``, given its words."""
        origin = argv[0].origin if argv else Origin("shell")
        return self._whole([_Item("", word) for word in argv], False, origin)

    def _whole(self, items: list[_Item], double: bool, origin: Origin) -> Truth:
        """Return the truth of all items of a condition; OPEN if they do not parse, or are more than
        60. double: the condition stands in ``[[ ]]``, not in ``[ ]``.
        """
        reader = _Reader(self, items, double, origin)
        try:
            truth = reader.disjunction() if len(items) <= _MOST_ITEMS else OPEN
        except IndexError:
            return OPEN
        return truth if not reader.items else OPEN

    def unary(self, operator: str, word: Word) -> Truth:
        """Return the truth of ``-z WORD``, ``-f WORD`` and the like.

        ``-e``, ``-f``, ``-r`` and ``-s`` are true if the file lies beside the launch; other tests
        of a file are undecided.
        """
        if operator in ("-z", "-n"):
            truth = self.is_empty(word)
            return truth if operator == "-z" else truth.negated()
        lies = not word.unresolved and operator in _THERE and self.has_file(word.text)
        return Truth(lies or None, doubts=word.doubts if lies or word.unresolved else ())

    def is_empty(self, word: Word) -> Truth:
        """Return whether a text is empty.

        An unknown argument of the script is taken as empty, with ``soft`` set. Any other unknown
        text is undecided, unless a known part makes it not empty.
        """
        if not word.unresolved:
            return Truth(not word.text, doubts=word.doubts)
        match = _NEVER_SET.fullmatch(word.text)
        of_script = match is not None and match[1][0] in "0123456789@*"
        if of_script and len(word.unresolved) == 1 and self.state.parameters is None:
            return Truth(True, soft=True)
        literal = _NEVER_SET.sub("", word.text)
        # ``"x$A"`` is not empty, whatever A is.
        plain = "$(" not in word.text and "`" not in word.text and "${" not in word.text
        if literal and plain:
            return FALSE
        alone = not literal and len(word.unresolved) == 1
        asks = word.unresolved[0] if alone and word.unresolved[0].isidentifier() else ""
        return Truth(None, doubts=word.doubts, asks=asks)

    def binary(self, left: Word, operator: str, right: Word) -> Truth:
        """Return the truth of ``left = right``, ``left -eq right`` and the like.

        It is undecided for an operator that is not supported, such as ``<`` or ``-nt``.
        """
        doubts = (*left.doubts, *right.doubts)
        if operator in _NUMERIC:
            (a, soft), (b, also) = self.integer(left), self.integer(right)
            if a is not None and b is not None:
                return Truth(_NUMERIC[operator](a, b), soft or also, doubts)
        elif operator in ("=", "==", "!="):
            for tested, empty_word in ((left, right), (right, left)):
                if not empty_word.unresolved and not empty_word.text:
                    truth = self.is_empty(tested)
                    return truth.negated() if operator == "!=" else truth
            if not left.unresolved and not right.unresolved:
                return Truth((left.text == right.text) != (operator == "!="), doubts=doubts)
        return Truth(None, doubts=doubts)

    def integer(self, word: Word) -> tuple[int | None, bool]:
        """Return the number of a word, None if not known.

        The second value is True if the number assumes that the script has no arguments: ``$#`` is
        then 0.
        """
        if word.text == "$#" and self.state.parameters is None:
            return 0, True
        if word.unresolved or not _INTEGER.fullmatch(word.text.strip()):
            return None, False
        return int(word.text), False

    def matches(self, word: Word, pieces: Pieces, origin: Origin) -> Truth:
        """Return whether ``word`` matches the pattern ``pieces``, as in ``case`` and ``[[ == ]]``;
        undecided if one of the two is not known.
        """
        compiled = pattern(self.state, pieces, origin)
        if isinstance(compiled, Word):
            return Truth(None, doubts=(*word.doubts, *compiled.doubts))
        if all(piece.type == "text" and not piece.text for piece in pieces):
            return self.is_empty(word)
        if compiled is None or word.unresolved:
            # A lone * takes anything.
            anything = compiled is not None and all(
                piece.type == "text" and not piece.quoted and set(piece.text) == {"*"}
                for piece in pieces
            )
            return TRUE if anything else Truth(None, doubts=word.doubts)
        return Truth(compiled.match(word.text) is not None, doubts=word.doubts)

    def regex_matches(self, word: Word, raw: str) -> Truth:
        """Return whether the expression ``raw`` matches; undecided if the word is not known, or if
        POSIX and Python may differ.
        """
        self.state.lose("BASH_REMATCH", word.origin, array=True)
        known = not word.unresolved and len(word.text) <= _LONGEST_SEARCHED and word.text.isascii()
        if not known or not raw or not _EXPRESSION.fullmatch(raw):
            return Truth(None, doubts=word.doubts)
        ended = raw[:-1] + r"\Z" if raw.endswith("$") else raw
        return Truth(re.search(ended, word.text, re.ASCII) is not None, doubts=word.doubts)


class _Reader:
    """Reads the items of one condition, by the precedence that bash gives them."""

    def __init__(
        self, conditions: Conditions, items: list[_Item], double: bool, origin: Origin
    ) -> None:
        self.conditions, self.items = conditions, items
        self.double, self.origin = double, origin

    def operator(self, place: int = 0) -> str:
        """Return the operator at a place, "" without one; in ``[ ]`` any word may be one."""
        items = self.items[place : place + 1]
        return next((item.operator if self.double else item.word.text for item in items), "")

    def disjunction(self) -> Truth:
        return self.chain(either, "||" if self.double else "-o", self.conjunction)

    def conjunction(self) -> Truth:
        return self.chain(both, "&&" if self.double else "-a", self.single)

    def chain(
        self, combine: Callable[[Truth, Truth], Truth], operator: str, read: Callable[[], Truth]
    ) -> Truth:
        """Read conditions joined by ``operator``, each with ``read``.

        Args:
            combine: Both, or either.
        """
        truth = read()
        while self.operator() == operator:
            self.items = self.items[1:]
            truth = combine(truth, read())
        return truth

    def single(self) -> Truth:
        """Read one condition, or one in brackets, and take its items away.

        Raises:
            IndexError: If it does not parse.
        """
        items = self.items
        if not items:
            if self.double:
                raise IndexError
            return FALSE
        first, second = self.operator(), self.operator(1)
        if len(items) >= 3 and second in _BINARY and self.is_operand(items[2]):
            self.items = items[3:]
            return self.binary(items[0], second, items[2])
        if first == "!" and len(items) > 1:
            self.items = items[1:]
            return self.single().negated()
        if first == "(" and len(items) > 2:
            self.items = items[1:]
            truth = self.disjunction()
            if self.operator() != ")":
                raise IndexError
            self.items = self.items[1:]
            return truth
        if first in _UNARY and len(items) > 1 and self.is_operand(items[1]):
            self.items = items[2:]
            return self.conditions.unary(first, items[1].word)
        self.items = items[1:]
        return self.conditions.unary("-n", self.word(items[0]))

    def is_operand(self, item: _Item) -> bool:
        return not self.double or not item.operator

    def word(self, item: _Item) -> Word:
        if not self.is_operand(item):
            raise IndexError
        return item.word

    def binary(self, left: _Item, operator: str, right: _Item) -> Truth:
        """Return the truth of two items with an operator between them."""
        conditions, first, second = self.conditions, self.word(left), right.word
        if not self.double:
            return conditions.binary(first, operator, second)
        if operator == "=~":
            return conditions.regex_matches(first, right.raw)
        if operator in ("=", "==", "!="):
            truth = conditions.matches(first, right.pieces, self.origin)
            return truth.negated() if operator == "!=" else truth
        return conditions.binary(first, operator, second)


def _flatten(text: ShellText, nodes: Sequence[Node]) -> list[str | list[Node]]:
    """Return the parts of a condition in order: an operator as text, an operand as its nodes.

    The grammar nests them otherwise.
    """
    items: list[str | list[Node]] = []
    end = -1
    stack = list(reversed(nodes))
    while stack:
        tree = stack.pop()
        if tree.type in _COMPOUND:
            stack += reversed(tree.children)
            continue
        written = text.text(tree)
        if (not tree.is_named or tree.type == "test_operator") and written in _OPERATORS:
            items.append(written)
            end = -1
            continue
        if end == tree.start_byte and isinstance(items[-1], list):
            items[-1].append(tree)
        else:
            items.append([tree])
        end = tree.end_byte
    return items
