"""A Python program: the servers that it starts by literal calls, by its syntax tree alone.

``subprocess`` with words, ``os.system`` with a text, ``sglang.Engine`` and ``ServerArgs`` with
values. Every other call that may start something is named with its line; nothing is executed.
"""

import ast
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from checks.framework.regex import regex
from checks.framework.unknown import Inside
from preflight.launches.launch_files import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceError, SourceNote, Word, brief, join
from preflight.launches.variables import unknown_needed

_UNREAD = "script-not-read"
_SERVER = ("python3", "-m", "sglang.launch_server")
_RUNS_PYTHON = regex(r"#!.*(?:\bpython[\d.]*|\buv run --script)\s*(?:\n|$|-)")
_ENGINE = regex(r"sglang\.(?:.*\.)?(?:Engine|ServerArgs)")
_PROCESS = regex(r"subprocess\.(?:Popen|run|call|check_call|check_output)")
# What may start an engine, a store or another program; of some modules every call.
_STARTS = regex(
    r"(dynamo|lmcache|lmdeploy|mooncake|tensorrt_llm|vllm)\..*"
    r"|sglang\.(srt\..*|.*\b(Engine|Runtime|ServerArgs|\w*launch_\w+|run_\w+|execute_\w+))"
    r"|subprocess\.(Popen|run|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|os\.(system|popen|exec\w+|posix_spawn\w*|spawn\w+)|asyncio\.create_subprocess_\w+"
    r"|runpy\.run_\w+|exec"
)
# What only asks or describes: a version, the settings of one answer.
_ASKS = regex(r".*\b(SamplingParams|\w*[Vv]ersion\w*|\w*[Cc]lient)|(vllm|sglang)\.utils\..*")
_WHOLE_ENVIRONMENT = ("os.environ", "environ", "os.environ.copy()", "None")
_SETS_ONE = regex(r"(?:os\.)?environ\['(\w+)'\] = ")
_CHANGES = regex(
    r"(?:del )?(?:os\.)?environ(?:\[[^\]]*\](?: \+?= |$)| \|= |\.(?!copy|get|items|keys)\w+\()"
    r"|(?:\w+\.)*(?:load_dotenv|putenv)\("
)
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_REPEATS = ast.For | ast.AsyncFor | ast.While | ast.Lambda | _COMPREHENSIONS
_CHOOSES = ast.If | ast.IfExp | ast.BoolOp | ast.Match | ast.ExceptHandler
Doubts = tuple[SourceNote, ...]


class _CodePlace(NamedTuple):
    """A call or an assignment of a program.

    Attributes:
        function: The one that it stands in, "" for none.
        doubts: The conditions and loops around it, within that function.
    """

    syntax: ast.Call | ast.Assign | ast.AugAssign | ast.Delete
    function: str
    doubts: Doubts


def _read(launch: LaunchText) -> Reading:
    message = "a Python program is not run: what it starts but with literal words is not read"
    about = SourceNote(_UNREAD, message, Origin(launch.path))
    return join([read_program(launch), Reading((), (about,))])


def read_program(launch: LaunchText) -> Reading:
    """Return the commands of a Python text, with notes on calls that are not read.

    Raises:
        SourceError: For a text that is not Python, or is longer than 1 MiB.
    """
    variables, notes = with_env_files(launch)
    if len(launch.text) > 1 << 20:
        raise SourceError(f"{launch.path} is too long a program: give the launch alone")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its escapes: they are its own matter
            tree = ast.parse(launch.text)
        return join([Reading((), notes), *_Program(tree, launch, variables).readings()])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{launch.path} is not Python: {error}") from None


class _Program:
    def __init__(self, tree: ast.Module, launch: LaunchText, variables: dict[str, Word]) -> None:
        """Collect a program's imports, calls and changes of its environment."""
        self.path, self.beside, self.variables = launch.path, launch.beside, variables
        self.imported = {"exec": "exec"}
        for syntax in ast.walk(tree):
            for each in syntax.names if isinstance(syntax, ast.Import | ast.ImportFrom) else ():
                of = f"{syntax.module}." if isinstance(syntax, ast.ImportFrom) else ""
                root = each.name if of or each.asname else each.name.partition(".")[0]
                self.imported[each.asname or root] = of + root
        self.places = [*self.places_below(tree, "", ())]
        # Where each function of the program is called, by the name alone.
        self.called: dict[str, list[_CodePlace]] = defaultdict(list)
        for place in self.places:
            if isinstance(place.syntax, ast.Call):
                self.called[ast.unparse(place.syntax.func).rpartition(".")[2]].append(place)
        self.settings = [*self.environment_changes()]

    def at(self, syntax: ast.AST) -> Origin:
        return Origin(self.path, getattr(syntax, "lineno", None))

    def places_below(self, syntax: ast.AST, function: str, doubts: Doubts) -> Iterator[_CodePlace]:
        """Yield each call, assignment and ``del`` of ``syntax``, arguments before their call.

        Args:
            function: The function around, "" for none.
            doubts: The conditions and loops around.
        """
        test = getattr(syntax, "test", None)
        shown = "" if test is None else ast.unparse(test)[:60]
        if isinstance(syntax, ast.FunctionDef | ast.AsyncFunctionDef):
            function, doubts = syntax.name, ()
        elif isinstance(syntax, _REPEATS):
            message = f"how often this {type(syntax).__name__} goes is not read: read once"
            doubts = (*doubts, SourceNote("loop-not-counted", message, self.at(syntax)))
        elif isinstance(syntax, _CHOOSES) and shown != "__name__ == '__main__'":
            message = f"nothing here decides {shown or 'a choice'}: read as if it were true"
            doubts = (*doubts, SourceNote("condition", message, self.at(syntax)))
        for child in ast.iter_child_nodes(syntax):
            yield from self.places_below(child, function, doubts)
        if isinstance(syntax, ast.Call | ast.Assign | ast.AugAssign | ast.Delete):
            yield _CodePlace(syntax, function, doubts)

    def doubts(self, place: _CodePlace, depth: int = 0) -> Doubts:
        """Return the doubts of a place, and of the only call of its function.

        Without exactly one call, the number of calls is a doubt.

        Args:
            depth: The number of calls in between so far.
        """
        if not place.function:
            return place.doubts
        calls = self.called[place.function]
        if len(calls) == 1 and depth < 16:
            return (*self.doubts(calls[0], depth + 1), *place.doubts)
        note_id = "loop-not-counted" if calls else "condition"
        message = f"how often {place.function} is called is not read: read once"
        return (SourceNote(note_id, message, self.at(place.syntax)), *place.doubts)

    def readings(self) -> Iterator[Reading]:
        """Yield the commands of each literal call, and a note on each other call that may start
        something.

        Also notes on changes of the environment that are not read.
        """
        unread_places, has_started = list[_CodePlace](), False
        starred = self.imported.get("*", "")[:-1]
        for place in self.places:
            call = place.syntax
            if not isinstance(call, ast.Call):
                continue
            # The called function with its module; "" if that is not imported.
            root, dot, rest = ast.unparse(call.func).partition(".")
            module = self.imported.get(root, starred and starred + root)
            full = f"{module}{dot}{rest}" if module else ""
            if not _STARTS.fullmatch(full) or _ASKS.fullmatch(full):
                continue
            argv = self.words(call, full)
            environment = self.environment(place, call) if argv else None
            if not argv or argv[0].unresolved or environment is None:
                unread_places.append(place)
                continue
            doubts, has_started = self.doubts(place), True
            reading = read_words(argv, environment, beside=self.beside)
            commands = (each._replace(doubts=(*doubts, *each.doubts)) for each in reading.commands)
            yield reading._replace(commands=tuple(commands))
        unread_places += [where for where, name, _ in self.settings if has_started and not name]
        for each in unread_places:
            shown = brief(ast.unparse(getattr(each.syntax, "func", each.syntax))[:60])
            message = f"what {shown}(...) starts or sets is not read"
            yield Reading((), (SourceNote(_UNREAD, message, self.at(each.syntax)),))

    def words(self, call: ast.Call, full: str) -> list[Word]:
        """Return the words that a literal call starts; none for any other call.

        Args:
            full: The called function with its module.
        """
        keywords = {each.arg for each in call.keywords}
        if _ENGINE.fullmatch(full):
            front = [Word(text, self.at(call)) for text in _SERVER]
            others = [word for each in call.keywords for word in self.argument_words(each)]
            return [] if call.args or None in keywords else [*front, *others]
        if not call.args or not {None, "executable", "input"}.isdisjoint(keywords):
            return []
        first = call.args[0]
        if full == "os.system" or "shell" in keywords:
            text = self.word(first)
            shell = [Word(each, self.at(call)) for each in ("bash", "-c")]
            return [] if text.unresolved else [*shell, text]
        items = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
        if not _PROCESS.fullmatch(full) or any(isinstance(item, ast.Starred) for item in items):
            return []
        return [self.word(item) for item in items]

    def word(self, syntax: ast.expr) -> Word:
        """Return a literal as a word; any other expression is a word as written, and unresolved."""
        if isinstance(syntax, ast.Constant) and isinstance(syntax.value, str | int | float):
            return Word(str(syntax.value), self.at(syntax))
        if (text := ast.unparse(syntax)[:80]) == "sys.executable":
            return Word("python3", self.at(syntax))
        return Word(text, self.at(syntax), (text,), inside=Inside("program", self.path))

    def argument_words(self, keyword: ast.keyword) -> Iterator[Word]:
        """Yield a keyword argument as words: the flag and its value, or each item of a list.

        True gives only the flag; False and None give no word.
        """
        flag = Word(f"--{(keyword.arg or '').replace('_', '-')}", self.at(keyword.value))
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            yield from (flag, self.word(keyword.value))
            return
        if value is not None and value is not False:
            yield flag
            listed = value if isinstance(value, list | tuple) else [value]
            texts = [json.dumps(x, default=str) if isinstance(x, dict) else str(x) for x in listed]
            yield from (flag._replace(text=text) for text in texts if value is not True)

    def environment_changes(self) -> Iterator[tuple[_CodePlace, str, Word]]:
        """Yield place, name and value of changes of ``os.environ``; name "" if any may be set."""
        for place in self.places:
            shown = ast.unparse(place.syntax)
            match = _SETS_ONE.match(shown)
            if _CHANGES.match(shown):
                value = self.word(getattr(place.syntax, "value", ast.Constant("")))
                yield place, "" if match is None else match[1], value

    def environment(self, place: _CodePlace, call: ast.Call) -> dict[str, Word] | None:
        """Return the environment of a call's process; None if ``env=`` is not ``os.environ``."""
        variables = dict(self.variables)
        for where, name, word in self.settings:
            if not name:
                variables |= unknown_needed(variables, self.at(where.syntax))
            elif where.function in ("", place.function) and where.syntax.lineno < call.lineno:
                variables[name] = word._replace(doubts=self.doubts(where))
            elif place.function or where.syntax.lineno < call.lineno:  # whether before, is not read
                variables[name] = word._replace(unresolved=(name,))
        env = {each.arg: each.value for each in call.keywords}.get("env", ast.Constant(None))
        return variables if ast.unparse(env) in _WHOLE_ENVIRONMENT else None


KIND = LaunchKind(
    "a Python program",
    lambda launch: launch.path.endswith(".py") or _RUNS_PYTHON.match(launch.text) is not None,
    _read,
)
