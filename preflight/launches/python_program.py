"""A Python program: the servers that it starts, by its syntax tree alone.

``sglang.Engine(model_path="m", tp_size=2)`` and ``ServerArgs(...)`` take SGLang's arguments;
``subprocess.Popen([...])`` and its like take words, and SGLang's ``popen_launch_server`` a model
and ``other_args`` (sglang ``test/test_utils.py``). Names, lists, ``os.environ`` and ``env=`` are
followed in the order of the program, and its own functions where it calls them; loops over what is
written go as often as they do. Any other value is not known.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from preflight.launches.env_files import read_compose_env_file
from preflight.launches.launch_kind import Beside, LaunchKind, LaunchText, with_env_files
from preflight.launches.python_values import (
    MOST_TURNS,
    Doubts,
    Environ,
    Frame,
    PythonValues,
    doubted,
    name_of,
)
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceError, SourceNote, Word, brief, joined
from preflight.launches.variables import unread

_SERVERS = frozenset(("Engine", "ServerArgs"))
_STARTS = frozenset(("Popen", "call", "check_call", "check_output", "run"))
_POPEN = frozenset(("popen_launch_server", "popen_launch_pd_server"))
_SERVER = ("python3", "-m", "sglang.launch_server")
# A program in which this many calls stand is not one that starts a few servers.
_MOST_NODES = 200_000
_MOST_CALLS = 1000  # of its own functions
_LITERALS = frozenset((ast.List, ast.Tuple, ast.BinOp, ast.Constant, ast.Name))
_SWITCHES = ("True", "False", "None")


# Of these modules every call counts as a start; of SGLang's those below.
_ENGINES = frozenset("dynamo lmcache lmdeploy mooncake tensorrt_llm vllm".split())
_OF_SGLANG = re.compile(
    r"sglang\.(srt\..*|.*\b(Engine|Runtime|\w*launch_\w+|run_server|execute_shell_command))"
)
# What only asks or describes: a version, the settings of one answer.
_RUNS_PYTHON = re.compile(r"#!.*(?:\bpython[\d.]*|\buv run --script)\s*(?:\n|$|-)")
_ASKS = re.compile(r".*\b(SamplingParams|\w*[Vv]ersion\w*|\w*[Cc]lient)|(vllm|sglang)\.utils\..*")
_OTHERS = re.compile(
    r"subprocess\.(Popen|run|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|os\.(system|popen|exec\w+|posix_spawn\w*|spawn\w+)|asyncio\.create_subprocess_\w+"
    r"|runpy\.run_\w+|exec"
)


def _read(launch: LaunchText) -> Reading:
    reading, _ = _followed(launch)
    said = "a Python program is not run: what it starts but with literal words is not read"
    about = SourceNote("script-not-read", said, Origin(launch.path))
    return reading._replace(notes=(about, *reading.notes))


def started_by(launch: LaunchText) -> Reading | None:
    """Return what a Python text that a launch starts starts itself; None where it starts nothing.

    What starts something but is not read is noted. Raises SourceError.
    """
    reading, unread_calls = _followed(launch)
    notes = reading.notes
    if unread_calls:
        first = unread_calls[0]
        said = f"{brief(ast.unparse(first.func))}(...) starts what is not read here"
        more = f" ({len(unread_calls)} such calls)" if len(unread_calls) > 1 else ""
        note = SourceNote("script-not-read", said + more, Origin(launch.path, first.lineno))
        notes = (note, *notes)
    return reading._replace(notes=notes) if reading.commands or unread_calls else None


def _followed(launch: LaunchText) -> tuple[Reading, list[ast.Call]]:
    """Return what a program starts, and the calls that start what is not read."""
    variables, notes = with_env_files(launch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its escapes: they are its own matter
            tree = ast.parse(launch.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{launch.path} is not Python: {error}") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise SourceError(f"{launch.path} is too long a program: give the launch alone")
    follower = _Follower(launch.path, variables, launch.beside)
    try:
        follower.follow(tree)
    except RecursionError:
        raise SourceError(f"{launch.path} nests too deep: give the launch alone") from None
    readings = [Reading((), notes)]
    for one in follower.started:
        reading = read_words(one.words, one.environment, beside=launch.beside)
        commands = tuple(
            each._replace(doubts=(*one.doubts, *each.doubts)) for each in reading.commands
        )
        readings.append(reading._replace(commands=commands))
    readings.append(Reading((), tuple(follower.notes)))
    unread_calls = [
        call for call in _starts(tree) if call in follower.opened or call not in follower.read_calls
    ]
    return joined(readings), unread_calls


def _starts(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of a program that may start an engine, a store or another program."""
    imported: dict[str, str] = {"exec": "exec"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.partition(".")[0]
                imported[each.asname or root] = each.name if each.asname else root
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported |= {
                each.asname or each.name: f"{node.module}.{each.name}" for each in node.names
            }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        root, dot, rest = ast.unparse(node.func).partition(".")
        full = f"{imported[root]}{dot}{rest}" if root in imported else ""
        engine = full.partition(".")[0] in _ENGINES or _OF_SGLANG.fullmatch(full)
        if (engine and not _ASKS.fullmatch(full)) or _OTHERS.fullmatch(full):
            yield node


class _Started(NamedTuple):
    """The words of a process, its variables, and what its start hangs on."""

    words: list[Word]
    environment: dict[str, Word]
    doubts: Doubts


_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Follower(PythonValues):
    """Follows statements in their order. started: each process."""

    def __init__(self, path: str, variables: Mapping[str, Word], beside: Beside) -> None:
        super().__init__(path, variables)
        self.beside = beside
        self.notes: list[SourceNote] = []
        self.started: list[_Started] = []
        self.calls_made = 0
        self.functions: dict[str, _Function] = {}
        self.later = frozenset[ast.stmt]()  # functions and classes of the module
        self.entered: list[str] = []  # the functions that are being followed
        self.read_calls: set[ast.Call] = set()  # that start what is known
        self.opened: set[ast.Call] = set()  # whose program was not known, once at least

    def follow(self, tree: ast.Module) -> None:
        """Follow the module, then each function that nothing in it calls."""
        defined = (ast.FunctionDef, ast.AsyncFunctionDef)
        self.functions = {each.name: each for each in tree.body if isinstance(each, defined)}
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        self.later = frozenset(
            each for each in tree.body if isinstance(each, (*defined, ast.ClassDef))
        )
        module = self.frame()
        self.read(tree.body, module, ())
        for each in tree.body:
            if isinstance(each, ast.ClassDef):
                self.read_class(each, module)
            elif isinstance(each, defined) and each.name not in called:
                self.enter(each, None, module, ())

    def read_class(self, body: ast.ClassDef, around: Frame) -> None:
        frame = self.frame(around)
        for statement in body.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self.enter(statement, None, frame, ())
            elif isinstance(statement, ast.ClassDef):
                self.read_class(statement, frame)
            else:
                self.read([statement], frame, ())

    def fields(self, body: ast.ClassDef, frame: Frame) -> None:
        """Let ``Config.tp`` hold what the class says of ``tp``."""
        for each in body.body:
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                self.hold(f"{body.name}.{each.targets[0].id}", each.value, frame, frame, ())
            elif isinstance(each, ast.AnnAssign) and each.value is not None:
                name = f"{body.name}.{ast.unparse(each.target)}"
                self.hold(name, each.value, frame, frame, ())

    def enter(
        self, function: _Function, call: ast.Call | None, around: Frame, doubts: Doubts
    ) -> list[Word]:
        """Follow a function's body; return the words that it returns. call: who calls it."""
        self.calls_made += 1
        if self.calls_made > _MOST_CALLS:
            raise SourceError(f"{self.path} is too long a program: give the launch alone")
        frame = self.frame(around)
        named = [*function.args.posonlyargs, *function.args.args]
        names = [each.arg for each in (*named, *function.args.kwonlyargs)]
        for name in names:
            frame.forget(name)
        if call is not None:
            given: dict[str, ast.expr] = {}
            last = function.args.defaults
            if last:
                given |= dict(zip([each.arg for each in named[-len(last) :]], last, strict=True))
            for each, default in zip(
                function.args.kwonlyargs, function.args.kw_defaults, strict=True
            ):
                if default is not None:
                    given[each.arg] = default
            given |= dict(zip(names, call.args, strict=False))
            given |= {each.arg: each.value for each in call.keywords if each.arg in names}
            for name, value in given.items():
                self.hold(name, value, around, frame, ())
        self.entered.append(function.name)
        self.read(function.body, frame, doubts)
        self.entered.pop()
        return frame.returned

    def read(self, body: Iterable[ast.stmt], frame: Frame, doubts: Doubts) -> None:
        """Follow statements. doubts: what they hang on."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if statement not in self.later:
                    self.read(statement.body, self.frame(frame), ())
                elif isinstance(statement, ast.ClassDef):
                    self.fields(statement, frame)
                continue
            if isinstance(statement, ast.For) and not statement.orelse:
                self.loop(statement, frame, doubts)
                continue
            inner, skipped = doubts, ""
            if isinstance(statement, ast.If | ast.While):
                decided = self.decided(statement.test, frame)
                if decided is None:
                    inner = (*doubts, self.condition(statement))
                elif isinstance(statement, ast.If):
                    skipped = "orelse" if decided else "body"
            for field, value in ast.iter_fields(statement):
                if field == skipped:
                    continue
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.ExceptHandler):
                        self.read(each.body, frame, inner)
                    elif isinstance(each, ast.stmt):
                        self.read([each], frame, inner if field != "orelse" else doubts)
                    elif isinstance(each, ast.AST):
                        self.calls(each, frame, doubts)
            self.assign(statement, frame, doubts)

    def loop(self, statement: ast.For, frame: Frame, doubts: Doubts) -> None:
        """Follow a body as often as the loop goes, where that is written; else once, in doubt."""
        self.calls(statement.iter, frame, doubts)
        turns = self.turns(statement.iter, frame)
        if turns is None or len(turns) > MOST_TURNS:
            self.bind(statement.target, None, frame)
            text = f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"[:80]
            said = f"how often {text} goes is not known: read once"
            note = SourceNote("loop-not-counted", said, self.at(statement))
            self.read(statement.body, frame, (*doubts, note))
            return
        for value in turns:
            self.bind(statement.target, value, frame)
            self.read(statement.body, frame, doubts)

    def bind(self, target: ast.expr, value: ast.expr | None, frame: Frame) -> None:
        """Let the names of a loop hold a value; None: one that is not known."""
        if isinstance(target, ast.Tuple | ast.List):
            parts: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts):
                parts = [*value.elts]
            for each, part in zip(target.elts, parts, strict=True):
                self.bind(each, part, frame)
        elif value is None:
            frame.forget(ast.unparse(target))
        else:
            self.hold(ast.unparse(target), value, frame, frame, ())

    def hold(self, name: str, value: ast.expr, found: Frame, frame: Frame, doubts: Doubts) -> None:
        """Let ``name`` of ``frame`` hold a value, as ``found`` knows it."""
        mapping, words = self.mapping(value, found), self.words(value, found)
        if not doubts and (alias := found.mappings.get(ast.unparse(value))) is not None:
            mapping = alias  # one object with two names
        try:
            plain: tuple[Any, ...] = (self.plain(value, found),)
        except (ValueError, TypeError):
            plain = ()
        frame.forget(name)
        if mapping is not None:
            frame.mappings[name] = doubted(mapping, doubts) if doubts else mapping
        elif _LITERALS & {type(value)} or not any(word.unresolved for word in words):
            frame.lists[name] = [word._replace(doubts=(*word.doubts, *doubts)) for word in words]
        if plain and not doubts:
            frame.keep(name, plain[0])

    def assign(self, statement: ast.stmt, frame: Frame, doubts: Doubts) -> None:
        """Note what a statement makes of a name: ``=``, ``+=``, ``append``, ``update`` and more."""
        adds = False
        target: ast.expr | None = None
        value: ast.expr | None = None
        if isinstance(statement, ast.Return) and statement.value is not None:
            frame.returned = self.words(statement.value, frame)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            adds, target, value = True, statement.target, statement.value
        elif isinstance(statement, ast.Delete):
            for each in statement.targets:
                self.entry(each, None, frame, doubts)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            verb = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if verb in ("append", "extend") and call.args:
                adds, target, value = True, getattr(call.func, "value", None), call.args[0]
                if verb == "append":
                    value = ast.copy_location(ast.List([value], ast.Load()), value)
            else:
                self.change(call, verb, frame, doubts)
        if target is None or value is None:
            return
        if isinstance(target, ast.Subscript):
            self.entry(target, value, frame, doubts)
            return
        if isinstance(target, ast.Tuple | ast.List) and not doubts:
            self.bind(target, value, frame)
            return
        name = ast.unparse(target)
        if not adds:
            self.hold(name, value, frame, frame, doubts)
        elif name in frame.lists:
            words = self.words(value, frame)
            text = isinstance(value, ast.JoinedStr) or isinstance(frame.plains.get(name), str)
            if text and len(words) == len(frame.lists[name]) == 1:
                joined_text = ast.BinOp(target, ast.Add(), value)
                self.hold(name, ast.copy_location(joined_text, target), frame, frame, doubts)
                return
            frame.plains.pop(name, None)
            frame.lists[name] = [
                *frame.lists[name],
                *(word._replace(doubts=(*word.doubts, *doubts)) for word in words),
            ]

    def entry(self, target: ast.expr, value: ast.expr | None, frame: Frame, doubts: Doubts) -> None:
        """Set one entry of a mapping, as ``os.environ["A"] = "1"``; without a value remove it."""
        if not isinstance(target, ast.Subscript):
            return
        mapping = frame.mappings.get(ast.unparse(target.value))
        if mapping is None:
            return
        self.plain_entry(ast.unparse(target.value), target.slice, value, frame)
        (key,) = self.words(target.slice, frame)[:1] or [Word("", self.at(target), ("it",))]
        if key.unresolved:
            return
        if value is None:
            mapping.pop(key.text, None)
        else:
            mapping[key.text] = self.one(value, frame, doubts)

    def plain_entry(self, name: str, key: ast.expr, value: ast.expr | None, frame: Frame) -> None:
        held = frame.plains.pop(name, None)
        try:
            if isinstance(held, dict) and value is not None:
                frame.keep(name, held | {self.plain(key, frame): self.plain(value, frame)})
        except (ValueError, TypeError):
            pass  # it is not known any more

    def change(self, call: ast.Call, verb: str, frame: Frame, doubts: Doubts) -> None:
        """Follow what a method does to a mapping."""
        mapping = frame.mappings.get(ast.unparse(getattr(call.func, "value", call.func)))
        if ast.unparse(call.func) == "os.putenv":
            mapping, verb = self.environment, "__setitem__"
        if mapping is None:
            return
        frame.plains.pop(ast.unparse(getattr(call.func, "value", call.func)), None)
        if verb == "update":
            for argument in call.args:
                found = self.mapping(argument, frame)
                if found is None and isinstance(mapping, Environ):
                    found = unread(mapping, self.at(call))
                mapping.update(doubted(found or {}, doubts))
            for each in call.keywords:
                if each.arg is not None:
                    mapping[each.arg] = self.one(each.value, frame, doubts)
            return
        keys = self.words(call.args[0], frame) if call.args else []
        if len(keys) != 1 or keys[0].unresolved:
            return
        if verb in ("setdefault", "__setitem__") and len(call.args) == 2:
            if verb == "__setitem__" or keys[0].text not in mapping:
                mapping[keys[0].text] = self.one(call.args[1], frame, doubts)
        elif verb == "pop":
            mapping.pop(keys[0].text, None)

    def calls(self, node: ast.AST, frame: Frame, doubts: Doubts) -> None:
        """Follow the calls of an expression: what starts a process, and the program's own."""
        inside: set[ast.AST] = set()
        for each in ast.walk(node):
            if isinstance(each, ast.ListComp | ast.SetComp | ast.GeneratorExp):
                if each not in inside:  # those within it are followed with it
                    self.comprehension(each, frame, doubts)
                inside.update(ast.walk(each))
        for call in _calls(node):
            if call in inside:
                continue
            origin, name = self.at(call), name_of(call.func)
            words: list[Word] = []
            environment: dict[str, Word] = self.environment
            if name in self.functions and isinstance(call.func, ast.Name):
                if name not in self.entered:
                    function = self.functions[name]
                    frame.called[call] = self.enter(function, call, frame, doubts)
            elif name == "load_dotenv":
                self.load_dotenv(call, frame)
            elif name in _SERVERS and call.keywords:
                words = list(self.server(call, origin, frame))
            elif name in _STARTS and call.args:
                words = self.words(call.args[0], frame)
                if not words or words[0].unresolved:
                    self.opened.add(call)
                    continue
                if any(each.arg == "shell" and _is_true(each.value) for each in call.keywords):
                    words = [*(Word(text, origin) for text in ("bash", "-c")), words[0]]
            elif ast.unparse(call.func) == "os.system" and call.args:
                text = self.one(call.args[0], frame, ())
                words = [*(Word(text, origin) for text in ("bash", "-c")), text]
            elif name in _POPEN and call.args:
                words = [Word(text, origin) for text in (*_SERVER, "--model-path")]
                words += self.words(call.args[0], frame)[:1]
                others = [each.value for each in call.keywords if each.arg == "other_args"]
                words += [word for each in others for word in self.words(each, frame)]
                words += _address(self.words(call.args[1], frame) if len(call.args) > 1 else [])
            if not words:
                continue
            self.read_calls.add(call)
            for each in call.keywords:
                if each.arg == "env" and not _is_none(each.value):
                    given = self.variables(each.value, frame)
                    environment = {**environment, **given} if name in _POPEN else given
            self.started.append(_Started(words, dict(environment), doubts))

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame, doubts: Doubts
    ) -> None:
        """Follow ``[Popen(...) for i in range(4)]`` as a loop over the same."""
        first, *others = node.generators
        body = ast.copy_location(ast.Expr(node.elt), node.elt)
        over = first.iter
        if others or first.ifs:  # how often, is not followed
            over = ast.copy_location(ast.Name("what is chosen", ast.Load()), over)
        loop = ast.For(target=first.target, iter=over, body=[body], orelse=[])
        self.loop(ast.copy_location(loop, node), self.frame(frame), doubts)

    def variables(self, node: ast.expr, frame: Frame) -> dict[str, Word]:
        """Return what ``env=`` gives a process; what is not known may hold what a server needs."""
        known = self.mapping(node, frame)
        return {**unread({}, self.at(node)), **self.environment} if known is None else known

    def load_dotenv(self, call: ast.Call, frame: Frame) -> None:
        """Take in the file that python-dotenv reads; what the caller has set stays."""
        path = self.one(call.args[0], frame, ()) if call.args else Word(".env", self.at(call))
        overrides = any(each.arg == "override" and _is_true(each.value) for each in call.keywords)
        named = any(each.arg in ("dotenv_path", "stream") for each in call.keywords)
        text = None if path.unresolved or named else self.beside(path.text)
        if text is None:
            why = f"{brief(path.text)} is not read: its variables are unknown"
            self.notes.append(SourceNote("env-file-not-read", why, self.at(call)))
            self.environment.update(unread(self.environment, self.at(call)))
            return
        found, notes = read_compose_env_file(text, path.text, self.environment)
        self.notes += notes
        for name, word in found.items():
            if overrides or name not in self.environment:
                self.environment[name] = word

    def server(self, node: ast.Call, origin: Origin, frame: Frame) -> Iterator[Word]:
        """Yield the words of a server with these arguments; what is not known stays open."""
        yield from (Word(text, origin) for text in _SERVER)
        for keyword in node.keywords:
            if keyword.arg is None:
                held = self.mapping(keyword.value, frame)
                if held is None:
                    yield Word("**", origin, ("the arguments behind **",))
                for name, word in (held or {}).items():
                    yield from _argument(name, [word], word.origin)
                continue
            at = Origin(origin.source, keyword.value.lineno)
            yield from _argument(keyword.arg, self.words(keyword.value, frame), at)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of an expression in the order of the program: arguments come first."""
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


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


def _argument(name: str, words: list[Word], at: Origin) -> Iterator[Word]:
    """Yield a keyword's flag and its value; a switch alone, and nothing of one that is off."""
    flag = Word(f"--{name.replace('_', '-')}", at)
    if len(words) == 1 and not words[0].unresolved and words[0].text in _SWITCHES:
        if words[0].text == "True":
            yield flag._replace(doubts=words[0].doubts)
        return
    yield flag
    yield from words


def _recognises(launch: LaunchText) -> bool:
    """Return whether the name or the first line says that Python runs it."""
    return launch.path.endswith(".py") or _RUNS_PYTHON.match(launch.text) is not None


KIND = LaunchKind("a Python program", _recognises, _read)
