"""Integers as a shell works them out: ``$((A * 2))``, ``((i++))``, ``for ((i = 0; i < 8; …))``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from checks.base.regex import regex

# Longer sums are left as written.
_LONGEST_FORMULA = 400
_SET = regex(r"([A-Za-z_]\w*)(\[[^]]*\])?\s*(\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))", re.ASCII)
_SET_BEFORE = regex(r"(\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII)
_NUMBER = regex(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
_KNOWN = regex(r"(?:[\w\s+\-*/%()<>=&|]|!=)*", re.ASCII)
_TERNARY = regex(r"([^?:]+)\?([^?:]+):([^?:]+)", re.DOTALL)

# Gives the text of a name; None if nobody knows it.
Value = Callable[[str], "str | None"]
Assign = Callable[[str, int], None]


class _NotKnownError(Exception):
    """What stands there follows from a name that nobody sets, or is no sum that is read here."""


def arithmetic(formula: str, value: Value, assign: Assign | None = None) -> int | None:
    """Return the result of a formula; None if ``value`` knows no number for a name in it.

    assign: takes the result of ``i++`` and ``i = 3``; None if they are not to be followed. Sums,
    comparisons, one ``?:``, and assignments in front are read; bits, bases and ``**`` are not.
    """
    if len(formula) > _LONGEST_FORMULA:
        return None
    result = 0
    try:
        for part in formula.split(",") if formula.strip() else ():
            result = _part(part, value, assign)
    except (_NotKnownError, RecursionError):
        return None
    return result


def names_set(formula: str) -> dict[str, bool]:
    """Return the variables that a formula may set, and whether each is set by its element."""
    elements = {name: bool(element) for name, element, _ in _SET.findall(formula)}
    return {**{name: False for _, name in _SET_BEFORE.findall(formula)}, **elements}


def _part(text: str, value: Value, assign: Assign | None) -> int:
    """Return the result of one part of a formula, and carry out its assignment."""
    text = text.strip()
    before, behind = _SET_BEFORE.fullmatch(text), _SET.match(text)
    if before is None and (behind is None or behind[2]):
        if names_set(text):
            raise _NotKnownError
        return _sum(text, value)
    if assign is None:
        raise _NotKnownError
    if before is not None:
        name, result = before[2], _number(before[2], value) + (1 if before[1] == "++" else -1)
        assign(name, result)
        return result
    assert behind is not None
    name, operator, rest = behind[1], behind[3], text[behind.end() :]
    if operator in ("++", "--"):
        if rest.strip():
            raise _NotKnownError
        number = _number(name, value)
        assign(name, number + (1 if operator == "++" else -1))
        return number
    if operator[0] not in "=+-*/%":
        raise _NotKnownError
    result = _part(rest, value, assign)
    if operator != "=":
        result = _sum(f"({_number(name, value)}){operator[0]}({result})", value)
    assign(name, result)
    return result


def _sum(text: str, value: Value) -> int:
    """Return the value of an arithmetic expression without assignments. Raises _NotKnownError."""
    ternary = _TERNARY.fullmatch(text)
    if ternary is not None:
        condition, yes, no = ternary.groups()
        return _sum(yes if _sum(condition, value) else no, value)
    if not _KNOWN.fullmatch(text):
        raise _NotKnownError
    try:
        tree = ast.parse(f"({text.replace('&&', ' and ').replace('||', ' or ')})", mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        raise _NotKnownError from None
    return _worked_out(tree, value)


def _number(name: str, value: Value) -> int:
    text = value(name)
    if text is None or not _NUMBER.fullmatch(text.strip() or "0"):
        raise _NotKnownError
    return int(text.strip() or "0")


def _worked_out(node: ast.expr, value: Value) -> int:
    """Return the result of a tree, as C has it. Raises _NotKnownError."""
    match node:
        case ast.Constant(int() as number) if not isinstance(number, bool):
            return _whole(number)
        case ast.Name(name):
            return _number(name, value)
        case ast.BoolOp(ast.And() | ast.Or() as operator, operands):
            stops = isinstance(operator, ast.Or)
            for operand in operands:
                if bool(_worked_out(operand, value)) == stops:
                    return int(stops)
            return int(not stops)
        case ast.UnaryOp(ast.USub(), operand):
            return -_worked_out(operand, value)
        case ast.Compare(left, [operator], [right]):
            a, b = _worked_out(left, value), _worked_out(right, value)
            compared: dict[type, int] = {ast.Lt: a < b, ast.LtE: a <= b, ast.Gt: a > b}
            more: dict[type, int] = {ast.GtE: a >= b, ast.Eq: a == b, ast.NotEq: a != b}
            return int(_known({**compared, **more}, operator))
        case ast.BinOp(left, ast.Div() | ast.Mod() as operator, right):
            a, b = _worked_out(left, value), _worked_out(right, value)
            if not b:
                raise _NotKnownError
            # C rounds towards zero, Python downwards.
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if isinstance(operator, ast.Div) else a - quotient * b
        case ast.BinOp(left, operator, right):
            a, b = _worked_out(left, value), _worked_out(right, value)
            return _whole(_known({ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}, operator))
    raise _NotKnownError


def _known(results: dict[type, int], operator: ast.AST) -> int:
    if type(operator) not in results:
        raise _NotKnownError
    return results[type(operator)]


def _whole(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise _NotKnownError
    return number
