"""A Python program: the servers that it starts, by its syntax tree alone.

``sglang.Engine(model_path="m", tp_size=2)`` and ``ServerArgs(...)`` take SGLang's arguments;
``subprocess.Popen([...])`` and its like take words, and SGLang's ``popen_launch_server`` a model
and ``other_args`` (sglang ``test/test_utils.py``). Lists are followed through the names and ``+=``
of a function; any other value is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceError, SourceNote, Word, joined

_SERVERS = frozenset(("Engine", "ServerArgs"))
_STARTS = frozenset(("Popen", "call", "check_call", "check_output", "run"))
_POPEN = frozenset(("popen_launch_server", "popen_launch_pd_server"))
_SERVER = ("python3", "-m", "sglang.launch_server")
# A program in which this many calls stand is not one that starts a few servers.
_MOST_NODES = 200_000
_MOST_WORDS = 200_000  # copied from lists: one may be added to itself, again and again


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    try:
        tree = ast.parse(launch.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{launch.path} is not Python: {error}") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise SourceError(f"{launch.path} is too long a program: give the launch alone")
    follower = _Follower(launch.path)
    try:
        follower.read(tree.body, {}, ())
    except RecursionError:
        raise SourceError(f"{launch.path} nests too deep: give the launch alone") from None
    readings = [Reading((), notes)]
    readings += [read_words(words, variables, beside=launch.beside) for words in follower.started]
    said = "a Python program is not run: what it starts but with literal words is not read"
    readings.append(Reading((), (SourceNote("script-not-read", said, Origin(launch.path)),)))
    return joined(readings)


_Lists = dict[str, list[Word]]  # by the name that holds each


class _Follower:
    """Follows statements in their order. started: the words of each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.started: list[list[Word]] = []
        self.copied = 0

    def read(self, body: Iterable[ast.stmt], lists: _Lists, doubts: tuple[SourceNote, ...]) -> None:
        """Follow statements. lists: by the names around. doubts: what the statements hang on."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.read(statement.body, dict(lists), ())
                continue
            inner = doubts
            if isinstance(statement, ast.If | ast.While):
                text = ast.unparse(statement.test)[:80]
                said = f"nothing here decides {text}: read as if it were true"
                inner = (*doubts, SourceNote("condition", said, self.at(statement)))
            for field, value in ast.iter_fields(statement):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.ExceptHandler):
                        self.read(each.body, lists, inner)
                    elif isinstance(each, ast.stmt):
                        self.read([each], lists, inner if field != "orelse" else doubts)
                    elif isinstance(each, ast.AST):
                        self.calls(each, lists)
            self.assign(statement, lists, doubts)

    def assign(self, statement: ast.stmt, lists: _Lists, doubts: tuple[SourceNote, ...]) -> None:
        """Note what a statement makes of a list: ``=``, ``+=``, ``append`` and ``extend``."""
        adds = False
        target: ast.expr | None = None
        value: ast.expr | None = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            adds, target, value = True, statement.target, statement.value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            verb = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if verb in ("append", "extend") and call.args:
                adds, target, value = True, getattr(call.func, "value", None), call.args[0]
                if verb == "append":
                    value = ast.copy_location(ast.List([value], ast.Load()), value)
        if target is None or value is None:
            return
        name = ast.unparse(target)
        words = [word._replace(doubts=(*word.doubts, *doubts)) for word in self.words(value, lists)]
        if not adds:
            lists.pop(name, None)
            if isinstance(value, ast.List | ast.Tuple | ast.BinOp | ast.Constant | ast.Name):
                lists[name] = words
        elif name in lists:
            lists[name] = [*lists[name], *words]

    def calls(self, node: ast.AST, lists: _Lists) -> None:
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            origin, name = self.at(call), _name(call.func)
            words: list[Word] = []
            if name in _SERVERS and call.keywords:
                words = list(_server(call, origin))
            elif name in _STARTS and call.args:
                words = self.words(call.args[0], lists)
                if not words or words[0].unresolved:
                    continue
            elif name in _POPEN and call.args:
                words = [Word(text, origin) for text in (*_SERVER, "--model-path")]
                words += self.words(call.args[0], lists)[:1]
                others = [each.value for each in call.keywords if each.arg == "other_args"]
                words += [word for each in others for word in self.words(each, lists)]
                words += _address(self.words(call.args[1], lists) if len(call.args) > 1 else [])
            if words:
                self.started.append(words)

    def words(self, node: ast.expr, lists: _Lists) -> list[Word]:
        """Return the words of a list, or the one of a text; what is not known stays open."""
        origin = self.at(node)
        if isinstance(node, ast.List | ast.Tuple):
            return [word for item in node.elts for word in self.item(item, lists)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self.words(node.left, lists), *self.words(node.right, lists)]
        if (found := lists.get(ast.unparse(node))) is not None:
            self.copied += len(found)
            if self.copied > _MOST_WORDS:
                raise SourceError(f"{self.path} is too long a program: give the launch alone")
            return found
        return [_word(node, origin)]

    def item(self, node: ast.expr, lists: _Lists) -> list[Word]:
        return self.words(node.value if isinstance(node, ast.Starred) else node, lists)

    def at(self, node: ast.AST) -> Origin:
        return Origin(self.path, getattr(node, "lineno", None))


def _address(url: list[Word]) -> Iterator[Word]:
    for word in url:
        try:
            parts = urlsplit(word.text)
            given = (("--host", parts.hostname), ("--port", parts.port))
        except ValueError:
            return
        for flag, value in given:
            if word.unresolved or value is not None:
                yield word._replace(text=flag, unresolved=())
                yield word if word.unresolved else word._replace(text=str(value))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _server(node: ast.Call, origin: Origin) -> Iterator[Word]:
    """Yield the words of a server with these arguments; one that is not literal stays open."""
    yield from (Word(text, origin) for text in _SERVER)
    for keyword in node.keywords:
        if keyword.arg is None:
            yield Word("**", origin, ("the arguments behind **",))
            continue
        at = Origin(origin.source, keyword.value.lineno)
        flag = Word(f"--{keyword.arg.replace('_', '-')}", at)
        value = keyword.value
        if isinstance(value, ast.Constant) and isinstance(value.value, bool | None):
            if value.value:
                yield flag
            continue
        yield flag
        yield _word(value, at)


def _word(node: ast.expr, origin: Origin) -> Word:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return Word(str(node.value), origin)
    text = ast.unparse(node)[:80]
    return Word(text, origin, (text,))


KIND = LaunchKind("a Python program", lambda launch: launch.path.endswith(".py"), _read)
