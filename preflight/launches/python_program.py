"""A Python program: the servers that it starts with literal words, by its syntax tree alone.

``sglang.Engine(model_path="m", tp_size=2)`` and ``ServerArgs(...)`` take SGLang's arguments;
``subprocess.Popen([...])`` and its like take words. What follows from a variable is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceError, SourceNote, Word, joined

_SERVERS = frozenset(("Engine", "ServerArgs"))
_STARTS = frozenset(("Popen", "call", "check_call", "check_output", "run"))
# A program in which this many calls stand is not one that starts a few servers.
_MOST_NODES = 200_000


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    try:
        tree = ast.parse(launch.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{launch.path} is not Python: {error}") from None
    readings = [Reading((), notes)]
    for number, node in enumerate(ast.walk(tree)):
        if number > _MOST_NODES:
            raise SourceError(f"{launch.path} is too long a program: give the launch alone")
        if not isinstance(node, ast.Call):
            continue
        origin = Origin(launch.path, node.lineno)
        name = _name(node.func)
        words: list[Word] = []
        if name in _SERVERS and node.keywords:
            words = list(_server(node, origin))
        elif name in _STARTS and node.args:
            words = list(_listed(node.args[0], origin))
        if words:
            readings.append(read_words(words, variables, beside=launch.beside))
    said = "a Python program is not run: what it starts but with literal words is not read"
    readings.append(Reading((), (SourceNote("script-not-read", said, Origin(launch.path)),)))
    return joined(readings)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _server(node: ast.Call, origin: Origin) -> Iterator[Word]:
    """Yield the words of a server with these arguments; one that is not literal stays open."""
    yield from (Word(text, origin) for text in ("python3", "-m", "sglang.launch_server"))
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


def _listed(node: ast.expr, origin: Origin) -> Iterator[Word]:
    """Yield the words of a list of texts; nothing where it is none, or begins with no text."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    if not items or not isinstance(items[0], ast.Constant):
        return
    for item in items:
        if isinstance(item, ast.Starred):
            name = ast.unparse(item)
            yield Word(name, origin, (name,))
        else:
            yield _word(item, Origin(origin.source, item.lineno))


def _word(node: ast.expr, origin: Origin) -> Word:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return Word(str(node.value), origin)
    text = ast.unparse(node)[:80]
    return Word(text, origin, (text,))


KIND = LaunchKind("a Python program", lambda launch: launch.path.endswith(".py"), _read)
