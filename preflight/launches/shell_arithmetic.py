"""Integers as a shell works them out: ``$((A * 2))``, ``((i++))``, ``for ((i = 0; i < 8; …))``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

# Longer sums are left as written, and so are deeper ones.
_LONGEST_FORMULA = 400
_DEEPEST = 24
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:#\w+)?)|([A-Za-z_]\w*)|"
    r"(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),])|(\S))",
    re.ASCII,
)
_BINARY: Mapping[str, int] = {
    operator: level
    for level, operators in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %", "**"), start=1
    )
    for operator in operators.split()
}
_ASSIGNS = frozenset("= += -= *= /= %= &= |= ^= <<= >>=".split())
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_SETS = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|"
    r"([A-Za-z_]\w*)(\[[^]]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))",
    re.ASCII,
)

# Gives the text of a name; None where nobody knows it.
Value = Callable[[str], "str | None"]
Assign = Callable[[str, int], None]


class _NotKnownError(Exception):
    """What stands there follows from a name that nobody sets, or is no sum of integers."""


def arithmetic(formula: str, value: Value, assign: Assign | None = None) -> int | None:
    """Return what a formula comes to; None where ``value`` knows no number for a name in it.

    assign: takes what ``i++`` and ``i = 3`` set; None where they are not to be followed.
    """
    if len(formula) > _LONGEST_FORMULA:
        return None
    try:
        return _Sum(formula, value, assign).whole()
    except (_NotKnownError, RecursionError):
        return None


def names_set(formula: str) -> dict[str, bool]:
    """Return the variables that a formula may set, and whether of each an element is meant."""
    found: dict[str, bool] = {}
    for before, name, element in _SETS.findall(formula):
        found[before or name] = bool(element) or found.get(before or name, False)
    return found


class _Sum:
    def __init__(self, formula: str, value: Value, assign: Assign | None) -> None:
        self.tokens: list[tuple[str, str]] = []
        for number, name, operator, other in _TOKEN.findall(formula.strip()):
            if other:
                raise _NotKnownError
            self.tokens.append(
                ((number and "number") or (name and "name") or "", number or name or operator)
            )
        self.position = 0
        self.depth = 0
        self.runs = True  # else the other side of && or ?: is passed over
        self.value = value
        self.assign = assign

    def whole(self) -> int:
        result = 0
        while self.tokens:
            result = self.ternary()
            if self.position == len(self.tokens):
                break
            self.take(",")
        return result

    def peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def take(self, wanted: str = "") -> tuple[str, str]:
        if self.position >= len(self.tokens):
            raise _NotKnownError
        token = self.tokens[self.position]
        if wanted and token[1] != wanted:
            raise _NotKnownError
        self.position += 1
        return token

    def skipping(self, runs: bool, read: Callable[[], int]) -> int:
        """Read a side; where it does not run, nothing of it has to be known."""
        before = self.runs
        self.runs = before and runs
        result = read()
        self.runs = before
        return result

    def ternary(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NotKnownError
        condition = self.binary(1)
        if self.peek() == "?":
            self.take()
            first = self.skipping(bool(condition), self.ternary)
            self.take(":")
            second = self.skipping(not condition, self.ternary)
            condition = first if condition else second
        self.depth -= 1
        return condition

    def binary(self, level: int) -> int:
        left = self.unary()
        while (here := _BINARY.get(self.peek(), 0)) >= level:
            operator = self.take()[1]
            runs = not ((operator == "&&" and not left) or (operator == "||" and left))
            # ** binds to the right, all others to the left.
            above = here if operator == "**" else here + 1
            right = self.skipping(runs, partial(self.binary, above))
            if self.runs:
                left = _worked_out(operator, left, right)
        return left

    def unary(self) -> int:
        kind, text = self.take()
        if kind == "number":
            return _number(text)
        if kind == "name":
            return self.named(text)
        if text == "(":
            result = self.ternary()
            self.take(")")
            return result
        if text in ("++", "--"):
            name = self.take()[1]
            return self.set(name, self.known(name) + (1 if text == "++" else -1))
        if text not in "+-!~":
            raise _NotKnownError
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NotKnownError
        operand = self.unary()
        self.depth -= 1
        return {"+": operand, "-": -operand, "!": int(not operand), "~": ~operand}[text]

    def named(self, name: str) -> int:
        following = self.peek()
        if following in _ASSIGNS:
            self.take()
            right = self.ternary()
            if following != "=":
                right = _worked_out(following[:-1], self.known(name), right)
            return self.set(name, right)
        value = self.known(name)
        if following in ("++", "--"):
            self.take()
            self.set(name, value + (1 if following == "++" else -1))
        return value

    def known(self, name: str) -> int:
        if not self.runs:
            return 0
        text = self.value(name)
        if text is None or not _NUMBER.fullmatch(text.strip() or "0"):
            raise _NotKnownError
        sign = -1 if text.strip().startswith("-") else 1
        return sign * _number(text.strip().lstrip("-") or "0")

    def set(self, name: str, value: int) -> int:
        if self.assign is None:
            raise _NotKnownError
        if self.runs:
            self.assign(name, value)
        return value


def _number(text: str) -> int:
    if "#" in text:
        raise _NotKnownError
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    # A number that begins with 0 is octal to bash; nobody means it, so it is not worked out.
    if text.startswith("0") and text != "0":
        raise _NotKnownError
    return int(text)


def _worked_out(operator: str, left: int, right: int) -> int:
    """Return the result for two numbers, as C has it.

    Raises where bash reports an error, or 64 bits do not hold it.
    """
    if operator in ("/", "%"):
        if not right:
            raise _NotKnownError
        # C rounds towards zero, Python downwards.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        result = quotient if operator == "/" else left - quotient * right
    elif operator in ("<<", ">>", "**"):
        if not 0 <= right < 64:
            raise _NotKnownError
        result = {"<<": left << right, ">>": left >> right, "**": left**right}[operator]
    else:
        result = int(
            {
                "+": left + right,
                "-": left - right,
                "*": left * right,
                "&": left & right,
                "|": left | right,
                "^": left ^ right,
                "&&": bool(left and right),
                "||": bool(left or right),
                "==": left == right,
                "!=": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }[operator]
        )
    if not -(2**63) <= result < 2**63:
        raise _NotKnownError
    return result
