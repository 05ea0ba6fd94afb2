"""What the names and expressions of a Python program hold, by its syntax tree alone.

Texts, numbers, lists, mappings, f-strings, ``json.dumps``, ``os.environ`` and what everybody writes
with them. A value that is not known stays open, as it is written; nothing is executed.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from checks.base.unknown import Inside
from preflight.launches.source import Origin, SourceError, SourceNote, Word
from preflight.launches.variables import unread

_MOST_WORDS = 200_000  # copied from lists: one may be added to itself, again and again
MOST_TURNS = 64  # of a loop that is written out
_DEEPEST = 50
_LONGEST_TEXT = 1 << 20
_LONGEST_VALUE = 1 << 14
_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
Doubts = tuple[SourceNote, ...]


class Frame:
    """What the names of one body hold: lists of words, mappings, and values as Python has them."""

    def __init__(self, around: Frame | None = None) -> None:
        self.lists: dict[str, list[Word]] = dict(around.lists if around else {})
        self.mappings: dict[str, dict[str, Word]] = dict(around.mappings if around else {})
        self.plains: dict[str, Any] = dict(around.plains if around else {})
        self.called: dict[ast.Call, list[Word]] = {}  # what the program's own functions returned
        self.returned: list[Word] = []

    def keep(self, name: str, value: Any) -> None:
        """Keep a value as Python has it, unless it is long: it may hold itself many times."""
        if len(repr(value)) <= _LONGEST_VALUE:
            self.plains[name] = value

    def forget(self, name: str) -> None:
        for names in (self.lists, self.mappings, self.plains):
            names.pop(name, None)


class Environ(dict[str, Word]):
    """os.environ, or a copy of it: an update with what is not known may set anything in it."""

    def copy(self) -> Environ:
        return Environ(self)


class PythonValues:
    """The values of a program's expressions. environment: its variables, which it may change."""

    def __init__(self, path: str, variables: Mapping[str, Word]) -> None:
        self.path = path
        self.copied = 0
        self.environment = Environ(variables)

    def frame(self, around: Frame | None = None) -> Frame:
        found = Frame(around)
        found.mappings |= {"os.environ": self.environment, "environ": self.environment}
        return found

    def turns(self, node: ast.expr, frame: Frame) -> list[ast.expr] | None:
        """Return what a loop goes over; None where that is not written."""
        if isinstance(node, ast.Name) and node.id in frame.plains:
            node = _written(frame.plains[node.id], node)
        if isinstance(node, ast.List | ast.Tuple):
            return None if any(isinstance(each, ast.Starred) for each in node.elts) else node.elts
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        name = name_of(node.func)
        if name == "items" and isinstance(node.func, ast.Attribute):
            held = node.func.value
            if isinstance(held, ast.Name) and held.id in frame.plains:
                held = _written(frame.plains[held.id], held)
            if not isinstance(held, ast.Dict) or None in held.keys:
                return None
            keys = [key for key in held.keys if key is not None]
            return [_tuple(each) for each in zip(keys, held.values, strict=True)]
        if name == "range":
            try:
                numbers = range(*(int(self.plain(each, frame)) for each in node.args))
            except (ValueError, TypeError):
                return None
            return [ast.Constant(each) for each in numbers[: MOST_TURNS + 1]]
        over = [self.turns(each, frame) for each in node.args[:2]]
        if name == "enumerate" and over and over[0] is not None:
            return [_tuple((ast.Constant(at), each)) for at, each in enumerate(over[0])]
        if name == "zip" and len(over) == 2 and over[0] is not None and over[1] is not None:
            return [_tuple(each) for each in zip(over[0], over[1], strict=False)]
        return None

    def mapping(self, node: ast.expr, frame: Frame) -> dict[str, Word] | None:
        """Return the entries of a mapping, a copy; None of what is none, or is not known."""
        if (held := frame.mappings.get(ast.unparse(node))) is not None:
            return held.copy()
        found: dict[str, Word] = {}
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    found = _over(found, self.mapping(value, frame), self.at(node))
                    continue
                words = self.words(key, frame)
                if len(words) == 1 and not words[0].unresolved:
                    found[words[0].text] = self.one(value, frame, ())
            return found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left, right = self.mapping(node.left, frame), self.mapping(node.right, frame)
            return None if left is None or right is None else _over(left, right, self.at(node))
        if not isinstance(node, ast.Call):
            return None
        name = name_of(node.func)
        if name in ("copy", "deepcopy"):
            of = node.args[0] if node.args else getattr(node.func, "value", None)
            return None if of is None else self.mapping(of, frame)
        if name != "dict":
            return None
        for each in node.args:
            found = _over(found, self.mapping(each, frame), self.at(node))
        for keyword in node.keywords:
            if keyword.arg is None:
                found = _over(found, self.mapping(keyword.value, frame), self.at(node))
            else:
                found[keyword.arg] = self.one(keyword.value, frame, ())
        return found

    def words(self, node: ast.expr, frame: Frame) -> list[Word]:
        """Return the words of a list, or the one of a text; what is not known stays open."""
        origin = self.at(node)
        if isinstance(node, ast.List | ast.Tuple):
            return [word for item in node.elts for word in self.item(item, frame)]
        if isinstance(node, ast.JoinedStr):
            return [self.text(node, frame)]
        if isinstance(node, ast.BinOp):
            return self.sum(node, frame)
        if isinstance(node, ast.Call):
            return self.result(node, frame)
        if isinstance(node, ast.ListComp) and ast.unparse(node).startswith("[str(x) for x in "):
            return self.words(node.generators[0].iter, frame)
        if isinstance(node, ast.IfExp):
            return self.either(node, frame)
        if ast.unparse(node) == "sys.executable":
            return [Word("python3", origin)]
        if isinstance(node, ast.Subscript):
            held = frame.mappings.get(ast.unparse(node.value))
            key = self.words(node.slice, frame)
            if held is not None and len(key) == 1 and key[0].text in held:
                return [held[key[0].text]]
        if (found := frame.lists.get(ast.unparse(node))) is not None:
            self.copied += len(found)
            if self.copied > _MOST_WORDS:
                raise SourceError(f"{self.path} is too long a program: give the launch alone")
            return found
        return [_word(node, origin)]

    def either(self, node: ast.IfExp, frame: Frame) -> list[Word]:
        """Return what ``a if test else b`` gives; a, in doubt, where nothing decides it."""
        decided = self.decided(node.test, frame)
        if decided is not None:
            return self.words(node.body if decided else node.orelse, frame)
        note = self.condition(node)
        return [word._replace(doubts=(*word.doubts, note)) for word in self.words(node.body, frame)]

    def decided(self, test: ast.expr, frame: Frame) -> bool | None:
        """Return what a condition is; None where nothing here decides it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decided(test.operand, frame)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            parts = [self.decided(each, frame) for each in test.values]
            ends = isinstance(test.op, ast.Or)  # what decides alone
            return ends if ends in parts else None if None in parts else not ends
        if ast.unparse(test) == "__name__ == '__main__'":
            return True
        try:
            if not isinstance(test, ast.Compare):
                return bool(self.plain(test, frame))
            if len(test.ops) > 1:
                return None
            left, right = self.plain(test.left, frame), self.plain(test.comparators[0], frame)
        except (ValueError, TypeError):
            return None
        way = _COMPARES.get(type(test.ops[0]))
        try:
            return None if way is None else bool(way(left, right))
        except TypeError:
            return None

    def condition(self, node: ast.If | ast.While | ast.IfExp) -> SourceNote:
        said = f"nothing here decides {ast.unparse(node.test)[:80]}: read as if it were true"
        return SourceNote("condition", said, self.at(node))

    def one(self, node: ast.expr, frame: Frame, doubts: Doubts) -> Word:
        """Return a value that is one text."""
        words = self.words(node, frame)
        word = words[0] if len(words) == 1 else _open(node, self.at(node))
        return word._replace(doubts=(*word.doubts, *doubts))

    def text(self, node: ast.JoinedStr, frame: Frame) -> Word:
        """Return what ``f"{a}:{b}"`` makes; as written where a part is not known."""
        parts, doubts = list[str](), list[SourceNote]()
        for each in node.values:
            value = each.value if isinstance(each, ast.FormattedValue) else each
            word = self.one(value, frame, ())
            if word.unresolved or (
                isinstance(each, ast.FormattedValue) and (each.format_spec or each.conversion > 0)
            ):
                return _open(node, self.at(node))
            parts.append(word.text)
            doubts += word.doubts
        made = "".join(parts)
        if len(made) > _LONGEST_TEXT:
            raise SourceError(f"{self.path} is too long a program: give the launch alone")
        return Word(made, self.at(node), (), tuple(doubts))

    def sum(self, node: ast.BinOp, frame: Frame) -> list[Word]:
        """Return two lists as one, two texts as one, or a number of two."""
        left, right = self.words(node.left, frame), self.words(node.right, frame)
        texts = (ast.JoinedStr, ast.Constant)
        plain = len(left) == len(right) == 1 and not (left[0].unresolved or right[0].unresolved)
        if plain and not isinstance(node.op, ast.Mod):
            doubts = (*left[0].doubts, *right[0].doubts)
            made = _arithmetic(node.op, left[0].text, right[0].text)
            if made is not None:
                return [Word(made, self.at(node), (), doubts)]
            joins = isinstance(node.left, texts) or isinstance(node.right, texts)
            joins = joins or isinstance(frame.plains.get(ast.unparse(node.left)), str)
            if isinstance(node.op, ast.Add) and joins:
                return [Word(left[0].text + right[0].text, self.at(node), (), doubts)]
        return [*left, *right] if isinstance(node.op, ast.Add) else [_open(node, self.at(node))]

    def result(self, node: ast.Call, frame: Frame) -> list[Word]:
        """Return what a call gives: the program's own functions, and a few that all know."""
        if (found := frame.called.get(node)) is not None:
            return found
        name, whole = name_of(node.func), ast.unparse(node.func)
        if name in ("str", "int") and len(node.args) == 1:
            word = self.one(node.args[0], frame, ())
            return [_open(node, self.at(node)) if word.unresolved else word]
        if whole == "shlex.split" and node.args:
            word = self.one(node.args[0], frame, ())
            try:
                split = shlex.split(word.text)
            except ValueError:
                split = []
            if split and not word.unresolved:
                return [word._replace(text=text) for text in split]
        if name == "split" and not node.args and isinstance(node.func, ast.Attribute):
            word = self.one(node.func.value, frame, ())
            if not word.unresolved:
                return [word._replace(text=text) for text in word.text.split()]
        if name == "list" and len(node.args) == 1:
            return self.words(node.args[0], frame)
        if name == "map" and len(node.args) == 2 and name_of(node.args[0]) == "str":
            return self.words(node.args[1], frame)
        if whole == "json.dumps" and len(node.args) == 1:
            try:
                said = json.dumps(self.plain(node.args[0], frame))
            except (ValueError, TypeError):
                return [_open(node, self.at(node))]
            return [Word(said, self.at(node))]
        held = frame.mappings.get(ast.unparse(getattr(node.func, "value", node.func)))
        if whole in ("os.getenv", "getenv"):
            held, name = self.environment, "get"
        if held is not None and name == "get" and node.args:
            key = self.one(node.args[0], frame, ())
            if not key.unresolved and key.text in held:
                return [held[key.text]]
            if len(node.args) == 2 and not key.unresolved:
                return [self.one(node.args[1], frame, ())]
        return [_open(node, self.at(node))]

    def plain(self, node: ast.expr, frame: Frame, depth: int = 0) -> Any:
        """Return what a value is in JSON. Raises ValueError where a part of it is open."""
        self.copied += 1
        if depth > _DEEPEST or self.copied > _MOST_WORDS:
            raise ValueError("nests too deep")
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = zip(node.keys, node.values, strict=True)
            return {
                self.plain(key, frame, depth + 1): self.plain(value, frame, depth + 1)
                for key, value in pairs
                if key is not None
            }
        if isinstance(node, ast.List | ast.Tuple):
            return [self.plain(each, frame, depth + 1) for each in node.elts]
        if (name := ast.unparse(node)) in frame.plains:
            return frame.plains[name]
        if isinstance(node, ast.Constant):
            return node.value
        word = self.one(node, frame, ())
        if word.unresolved:
            raise ValueError(word.text)
        counts = isinstance(node, ast.BinOp) or name_of(getattr(node, "func", node)) == "int"
        return int(word.text) if counts and word.text.isdecimal() else word.text

    def item(self, node: ast.expr, frame: Frame) -> list[Word]:
        return self.words(node.value if isinstance(node, ast.Starred) else node, frame)

    def at(self, node: ast.AST) -> Origin:
        return Origin(self.path, getattr(node, "lineno", None))


def _over(found: dict[str, Word], more: dict[str, Word] | None, origin: Origin) -> dict[str, Word]:
    """Return entries with others over them: variables of a process where either is.

    more: None where it is not known; then it may set what a server needs.
    """
    if not (isinstance(found, Environ) or isinstance(more, Environ)):
        return {**found, **(more or {})}
    return Environ({**found, **(unread(found, origin) if more is None else more)})


def _written(value: Any, at: ast.expr) -> ast.expr:
    """Return a value as it would be written there."""
    found = ast.parse(repr(value), mode="eval").body
    for each in ast.walk(found):
        ast.copy_location(each, at)
    return found


def _tuple(parts: Iterable[ast.expr]) -> ast.expr:
    return ast.Tuple([*parts], ast.Load())


def doubted(mapping: Mapping[str, Word], doubts: Doubts) -> dict[str, Word]:
    return {
        name: word._replace(doubts=(*word.doubts, *doubts)) if doubts else word
        for name, word in mapping.items()
    }


def _arithmetic(op: ast.operator, left: str, right: str) -> str | None:
    """Return a number of two that are written; None where it is none, or a very large one."""
    if not (re.fullmatch(r"-?\d{1,18}", left) and re.fullmatch(r"-?\d{1,18}", right)):
        return None
    one, other = int(left), int(right)
    if isinstance(op, ast.Pow):
        return str(one**other) if 0 <= other <= 64 and abs(one) <= 1 << 10 else None
    if isinstance(op, ast.FloorDiv):
        return str(one // other) if other else None
    ways = {ast.Add: one + other, ast.Sub: one - other, ast.Mult: one * other}
    return str(ways[type(op)]) if type(op) in ways else None


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _word(node: ast.expr, origin: Origin) -> Word:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return Word(str(node.value), origin)
    return _open(node, origin)


# os.environ["NAME"], os.environ.get("NAME"), os.getenv("NAME")
_OF_ENVIRONMENT = re.compile(
    r"""(?:(?:os\.)?environ(?:\[|\.get\()|(?:os\.)?getenv\()(?P<q>['"])(?P<name>\w+)(?P=q)[\])]"""
)


def _open(node: ast.expr, origin: Origin) -> Word:
    """Return a value that is not known, as it is written.

    What it is not known for is a variable of the environment, which can be given, or what is
    written here, which the program alone knows.
    """
    text = ast.unparse(node)[:80]
    key = _OF_ENVIRONMENT.fullmatch(text)
    if key is not None:
        return Word(text, origin, (key["name"],))
    return Word(text, origin, (text,), inside=Inside("program", origin.source))
