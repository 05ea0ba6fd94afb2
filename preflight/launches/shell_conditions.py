"""What a condition of a shell comes to, ``[ ]``, ``test`` or ``[[ ]]``, where that is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from checks.base.needs import SetLimit
from preflight.launches.shell_expansion import Shell
from preflight.launches.shell_patterns import LONGEST_SEARCHED
from preflight.launches.shell_tokens import Token
from preflight.launches.shell_words import Piece
from preflight.launches.source import Origin, SourceNote, Word

_NEVER_SET = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9@*])\}?")
_NUMERIC = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_TEXTS = ("=", "==", "!=", "<", ">", "=~")
_FILES = frozenset("-a -b -c -d -e -f -g -h -k -L -N -O -p -r -s -S -t -u -w -x -G".split())
_THERE = frozenset("-e -f -r -s".split())
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_DEEPEST = 20


class Truth(NamedTuple):
    """Whether a condition holds.

    value: None where nothing decides it. soft: it rests on a variable that nothing sets being
    empty: who writes ``[ -z "$MODEL" ] && exit`` expects the caller to set it. doubts: conditions
    that nothing decides and that it follows from. ran: a program decides, which is not run. limits:
    it holds unless the host refuses these, the last that ``ulimit`` set.
    """

    value: bool | None
    soft: bool = False
    doubts: tuple[SourceNote, ...] = ()
    ran: bool = False
    limits: tuple[SetLimit, ...] = ()

    def negated(self) -> Truth:
        return self if self.value is None else self._replace(value=not self.value)


TRUE, FALSE, OPEN = Truth(True), Truth(False), Truth(None)
PROGRAM = Truth(None, ran=True)
# Tells whether a file lies beside the launch, or is written by it.
Lies = Callable[[str], bool]


def both(left: Truth, right: Truth) -> Truth:
    for one in (left, right):
        if one.value is False:
            return one
    value = None if left.value is None or right.value is None else True
    return Truth(value, left.soft or right.soft, (*left.doubts, *right.doubts))


def either(left: Truth, right: Truth) -> Truth:
    return both(left.negated(), right.negated()).negated()


class Conditions:
    """Decides the conditions of one shell."""

    def __init__(self, shell: Shell, lies: Lies) -> None:
        self.shell = shell
        self.lies = lies
        self.assumed: dict[str, Origin] = {}  # names that are taken as empty, and where first

    def test(self, words: Sequence[Word]) -> Truth:
        """Return the truth of ``[ ... ]``, given the words between its brackets."""
        texts = list(words)
        if len(texts) > 60:
            return OPEN
        if len(texts) == 3 and texts[1].text in (*_TEXTS, *_NUMERIC):  # ! and ( may be operands
            return self.binary(*texts)
        found, rest = self.disjunction(texts, 0)
        return found if not rest else OPEN

    def disjunction(self, words: list[Word], depth: int) -> tuple[Truth, list[Word]]:
        left, words = self.conjunction(words, depth)
        while words and words[0].text == "-o":
            right, words = self.conjunction(words[1:], depth)
            left = either(left, right)
        return left, words

    def conjunction(self, words: list[Word], depth: int) -> tuple[Truth, list[Word]]:
        left, words = self.single(words, depth)
        while words and words[0].text == "-a":
            right, words = self.single(words[1:], depth)
            left = both(left, right)
        return left, words

    def single(self, words: list[Word], depth: int) -> tuple[Truth, list[Word]]:
        if not words:
            return FALSE, []
        first = words[0].text
        if depth > _DEEPEST:
            return OPEN, []
        if len(words) >= 3 and words[1].text in (*_TEXTS, *_NUMERIC, "-nt", "-ot", "-ef"):
            return self.binary(*words[:3]), words[3:]
        if first == "!" and len(words) > 1:
            found, rest = self.single(words[1:], depth + 1)
            return found.negated(), rest
        if first == "(" and len(words) > 2:
            found, rest = self.disjunction(words[1:], depth + 1)
            return (found, rest[1:]) if rest and rest[0].text == ")" else (OPEN, [])
        if len(words) >= 2 and (first in ("-z", "-n", "-v") or first in _FILES):
            return self.unary(first, words[1]), words[2:]
        return self.unary("-n", words[0]), words[1:]

    def unary(self, operator: str, word: Word) -> Truth:
        if operator in ("-z", "-n"):
            found = self.empty(word)
            return found if operator == "-z" else found.negated()
        if word.unresolved:
            return Truth(None, doubts=word.doubts)
        if operator == "-v":
            held = self.shell.variables.get(word.text) is not None or word.text in self.shell.arrays
            return Truth(held, soft=not held and not self.shell.variables.was_unset(word.text))
        if operator in _THERE and self.lies(word.text):
            return Truth(True, doubts=word.doubts)
        return OPEN

    def empty(self, word: Word) -> Truth:
        """Tell whether a text is empty; that of a variable that nothing sets is, softly."""
        if not word.unresolved:
            return Truth(not word.text, doubts=word.doubts)
        if self.never_set(word):
            self.assumed.setdefault(word.unresolved[0], word.origin)
            return Truth(True, soft=True)
        literal = _NEVER_SET.sub("", word.text)
        # ``"x$A"`` is not empty, whatever A is.
        plain = "$(" not in word.text and "`" not in word.text and "${" not in word.text
        return Truth(False) if literal and plain else Truth(None, doubts=word.doubts)

    def never_set(self, word: Word) -> bool:
        match = _NEVER_SET.fullmatch(word.text)
        if match is None or len(word.unresolved) != 1:
            return False
        name = match.group(1)
        if name[0] in "0123456789@*":
            return self.shell.parameters is None
        return self.shell.variables.get(name) is None and name not in self.shell.arrays

    def binary(self, left: Word, operator: Word, right: Word) -> Truth:
        sign = operator.text
        doubts = (*left.doubts, *right.doubts)
        if sign in _NUMERIC:
            numbers = [self.integer(word) for word in (left, right)]
            if any(number is None for number, _ in numbers):
                return Truth(None, doubts=doubts)
            (a, soft), (b, also) = numbers
            return Truth(_NUMERIC[sign](a, b), soft or also, doubts)
        if sign in ("=", "==", "!="):
            for one, other in ((left, right), (right, left)):
                if not other.unresolved and not other.text:
                    found = self.empty(one)
                    return found.negated() if sign == "!=" else found
            if left.unresolved or right.unresolved:
                return Truth(None, doubts=doubts)
            return Truth((left.text == right.text) != (sign == "!="), doubts=doubts)
        if sign in ("<", ">") and not left.unresolved and not right.unresolved:
            below = left.text < right.text if sign == "<" else left.text > right.text
            return Truth(below, doubts=doubts)
        return Truth(None, doubts=doubts)

    def integer(self, word: Word) -> tuple[int | None, bool]:
        """Return a number, and whether it rests on the script being given no argument."""
        if word.text == "$#" and self.shell.parameters is None:
            return 0, True
        if word.unresolved or not _INTEGER.fullmatch(word.text.strip()):
            return None, False
        return int(word.text), False

    def double(self, tokens: Sequence[Token], origin: Origin) -> Truth:
        """Return the truth of ``[[ ... ]]``, given the tokens between its brackets."""
        reader = _Double(self, [token for token in tokens if token.operator != "\n"], origin)
        try:
            found = reader.disjunction(0)
        except IndexError:
            return OPEN
        return found if reader.position == len(reader.tokens) else OPEN

    def matches(self, word: Word, pieces: Sequence[Piece], origin: Origin) -> Truth:
        """Hold a text against a pattern, as ``case`` and ``[[ == ]]`` do."""
        found = self.shell.pattern(pieces, origin)
        if isinstance(found, Word):
            return Truth(None, doubts=(*word.doubts, *found.doubts))
        if not pieces or all(piece.kind == "text" and not piece.text for piece in pieces):
            return self.empty(word)
        if found is None or word.unresolved:
            # A lone * takes anything.
            anything = found is not None and all(
                piece.kind == "text" and not piece.quoted and set(piece.text) == {"*"}
                for piece in pieces
            )
            return TRUE if anything else Truth(None, doubts=word.doubts)
        return Truth(found.match(word.text) is not None, doubts=word.doubts)

    def finds(self, word: Word, cut: Sequence[Token], origin: Origin) -> Truth:
        """Look for a regular expression in a text; one that was cut at its brackets is not read."""
        written = cut[0].word if len(cut) == 1 else None
        found = None if written is None else self.shell.expression(written.pieces, origin)
        if isinstance(found, Word):
            return Truth(None, doubts=(*word.doubts, *found.doubts))
        self.shell.lose_array("BASH_REMATCH", origin)
        if found is None or word.unresolved or len(word.text) > LONGEST_SEARCHED:
            return Truth(None, doubts=word.doubts)
        if not word.text.isascii():  # what a letter is, a locale says
            return Truth(None, doubts=word.doubts)
        return Truth(found.search(word.text) is not None, doubts=word.doubts)


class _Double:
    def __init__(self, conditions: Conditions, tokens: list[Token], origin: Origin) -> None:
        self.conditions = conditions
        self.tokens = tokens
        self.position = 0
        self.origin = origin

    def operator(self) -> str:
        here = self.tokens[self.position] if self.position < len(self.tokens) else None
        return "" if here is None else here.operator or here.bare

    def disjunction(self, depth: int) -> Truth:
        left = self.conjunction(depth)
        while self.operator() == "||":
            self.position += 1
            right = self.conjunction(depth)
            left = either(left, right)
        return left

    def conjunction(self, depth: int) -> Truth:
        left = self.single(depth)
        while self.operator() == "&&":
            self.position += 1
            right = self.single(depth)
            left = both(left, right)
        return left

    def single(self, depth: int) -> Truth:
        if depth > _DEEPEST:
            raise IndexError
        if self.operator() == "!":
            self.position += 1
            return self.single(depth + 1).negated()
        if self.operator() == "(":
            self.position += 1
            found = self.disjunction(depth + 1)
            if self.operator() != ")":
                raise IndexError
            self.position += 1
            return found
        first, behind = self.tokens[self.position], self.operator_at(1)
        if (first.bare in ("-z", "-n", "-v") or first.bare in _FILES) and self.tokens[
            self.position + 1
        ].word is not None:
            word = self.word(1)
            self.position += 2
            return self.conditions.unary(first.bare, word)
        if behind in (*_TEXTS, *_NUMERIC, "-nt", "-ot", "-ef"):
            return self.binary(behind)
        word = self.word(0)
        self.position += 1
        return self.conditions.unary("-n", word)

    def operator_at(self, offset: int) -> str:
        place = self.position + offset
        here = self.tokens[place] if place < len(self.tokens) else None
        return "" if here is None else here.operator or here.bare

    def word(self, offset: int) -> Word:
        written = self.tokens[self.position + offset].word
        if written is None:
            raise IndexError
        return self.conditions.shell.value(written.pieces, self.origin)

    def binary(self, operator: str) -> Truth:
        left = self.word(0)
        if operator == "=~":
            # A regular expression may be cut into several tokens: brackets, bars.
            first = self.position + 2
            self.position = first
            while self.position < len(self.tokens) and self.operator() not in ("&&", "||"):
                self.position += 1
            parts = self.tokens[first : self.position]
            return self.conditions.finds(left, parts, self.origin)
        right = self.tokens[self.position + 2].word
        if right is None:
            raise IndexError
        self.position += 3
        if operator in ("=", "==", "!="):
            found = self.conditions.matches(left, right.pieces, self.origin)
            return found.negated() if operator == "!=" else found
        value = self.conditions.shell.value(right.pieces, self.origin)
        if operator in _NUMERIC:
            # [[ takes sums: [[ N -gt 0 ]] looks N up.
            left, value = (self.summed(word) for word in (left, value))
        return self.conditions.binary(left, Word(operator, self.origin), value)

    def summed(self, word: Word) -> Word:
        if word.unresolved or _INTEGER.fullmatch(word.text):
            return word
        number = self.conditions.shell.number(word.text, self.origin)
        return word if number is None else word._replace(text=str(number))
