"""Integers as a shell works them out: ``$((A * 2))``, ``((i++))``, ``for ((i = 0; i < 8; …))``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from checks.framework.regex import regex

# Longer sums are left as written.
_LONGEST_FORMULA = 400
_SET = regex(r"([A-Za-z_]\w*)(\[[^]]*\])?\s*(\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))", re.ASCII)
_SET_BEFORE = regex(r"(\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII)
# ``++A``, ``A++`` or ``A += sum``: what alone may set a variable.
_SETS = regex(
    r"\s*(?:(\+\+|--)\s*)?([A-Za-z_]\w*)\s*(?:(\+\+|--)\s*|([-+*/%]?)=(?!=)(.*))?",
    re.ASCII | re.DOTALL,
)
_NUMBER = regex(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
_KNOWN = regex(r"(?:[\w\s+\-*/%()<>=&|]|!=)*", re.ASCII)

# Gives the text of a name; None if nobody knows it.
Value = Callable[[str], "str | None"]
Assign = Callable[[str, int], None]


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # C rounds towards zero


def _shift_count(bits: int) -> int:
    if not 0 <= bits < 64:  # what C does with others is up to the processor
        raise ArithmeticError
    return bits


_RESULTS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda a, b: a - _quotient(a, b) * b,
    ast.LShift: lambda a, b: a << _shift_count(b),
    ast.RShift: lambda a, b: a >> _shift_count(b),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def arithmetic(formula: str, value: Value, assign: Assign | None = None) -> int | None:
    """Return the result of a formula: of several between commas the last, 0 for an empty text.

    Args:
        assign: Called with name and result for ``i++`` or ``i = 3``; if it is None, such a formula
            gives None. Sums, shifts and comparisons are understood; other bits, bases, ``**`` and
            ``?:`` are not.

    Returns:
        None if the formula is not understood, or ``value`` knows no number for a name.
    """
    if len(formula) > _LONGEST_FORMULA:
        return None
    result = 0
    try:
        for part in formula.split(",") if formula.strip() else ():
            result = _evaluate_part(part, value, assign)
    except (ArithmeticError, SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return result


def names_set(formula: str) -> dict[str, bool]:
    """Return name -> whether an element is set, for each variable that a formula may set."""
    elements = {name: bool(element) for name, element, _ in _SET.findall(formula)}
    return {**{name: False for _, name in _SET_BEFORE.findall(formula)}, **elements}


def _evaluate_part(text: str, value: Value, assign: Assign | None) -> int:
    """Work out what stands between two commas of a formula, and do its assignment; ``i++`` returns
    the old value.

    Raises ArithmeticError, or SyntaxError and others of ``ast.parse``, if it is not understood, or
    assigns and ``assign`` is None.
    """
    match = _SETS.fullmatch(text)
    if match is None or not names_set(text):
        if names_set(text):
            raise ArithmeticError
        return _evaluate_sum(text, value)
    before, name, behind, by, rest = match.groups()
    if assign is None or (before and (behind or rest is not None)):
        raise ArithmeticError
    if rest is None:
        old = _number(name, value)
        result = old + (1 if "+" in (before or behind) else -1)
    else:
        result = old = _evaluate_part(rest, value, assign)
        if by:
            result = old = _evaluate_sum(f"({_number(name, value)}){by}({result})", value)
    assign(name, result)
    return old if behind else result


def _evaluate_sum(text: str, value: Value) -> int:
    """Work out a formula without assignments."""
    if not _KNOWN.fullmatch(text):
        raise ArithmeticError
    text = text.replace("&&", " and ").replace("||", " or ").strip()
    return _evaluate(ast.parse(f"({text})", mode="eval").body, value)


def _number(name: str, value: Value) -> int:
    text = value(name)
    if text is None or not _NUMBER.fullmatch(text.strip() or "0"):
        raise ArithmeticError
    return int(text.strip() or "0")


def _evaluate(tree: ast.expr, value: Value) -> int:
    """Return the result of a formula's syntax tree, in C's 64-bit integers.

    Raises:
        ArithmeticError: If an operator is not supported, a name not known, or the result too large.
    """
    match tree:
        case ast.Constant(int() as result) if not isinstance(result, bool):
            pass
        case ast.Name(name):
            return _number(name, value)
        case ast.BoolOp(joint, operands):
            stops = isinstance(joint, ast.Or)
            stopped = any(bool(_evaluate(each, value)) == stops for each in operands)
            return int(stopped == stops)
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, value)
        case ast.Compare(left, [joint], [right]) | ast.BinOp(left, joint, right) if (
            type(joint) in _RESULTS
        ):
            a, b = _evaluate(left, value), _evaluate(right, value)
            result = int(_RESULTS[type(joint)](a, b))
        case _:
            raise ArithmeticError
    if not -(2**63) <= result < 2**63:
        raise ArithmeticError
    return result
