"""Collect hosts and launches from a source tree's tests into a folder: run as a script.

``corpus.py TREE SHARED FOLDER PAIRS`` writes ``hosts/``, ``launches/`` and ``index.json``. It runs
with TREE on ``PYTHONPATH``, imports each module below ``tests/`` and takes what stands there:
module constants, values of parametrized tests, and expressions within functions that need nothing
but constants (``replace(gpu_host(), uid=1000)``, ``script("Qwen/Qwen3-8B", 2, NICS, "16gb")``). So
a new test's host and launch are compared without a word here, and modules may move.

Beside those: archives below ``tests/data`` and ``SHARED/captures``, launch files below
``tests/data/launches``,
``docs/examples``, ``SHARED/launches/found`` and ``.../rep``, and a fixed number
of examples that hypothesis draws. A folder that is absent is named in the index with
the reason.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Item = TypeVar("Item")

# Classes of the tests whose instances are hosts, and how each is written below a folder: the name
# of a function beside the class, or of a method.
HOST_WRITERS = {"SyntheticHost": "build_host", "Host": "write", "FakeHost": "write"}
# Hypothesis strategies of whole cases: what has these attributes is a host and its launch.
STRATEGIES = {"fit_hosts": "cases"}
DRAWN_EXAMPLES = 40
# A function of a test that makes more hosts and launches than these is a table, and no pairs.
PAIRED_AT_MOST = 3

LAUNCH_FOLDERS = ("tests/data/launches", "tests/launches", "docs/examples")
SHARED_LAUNCH_FOLDERS = ("launches/found", "launches/rep")
LAUNCH_SUFFIXES = (".sh", ".yaml", ".yml", ".json", ".py")
ARCHIVE = re.compile(r"\.tar(\.\w+)?$|\.tgz$")

# Programs whose command line is a launch, wherever they stand in a text.
PROGRAM = re.compile(
    r"sglang\.launch_server|\bsglang serve\b|mooncake_store_service|\bmooncake_client\b"
    r"|\bmooncake_master\b|http_metadata_server|\bvllm serve\b|sglang[\w.]*router"
)
# What a launch's line begins with; else a text that names a program is a message or a page.
FIRST_WORD = re.compile(
    r"^\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:export|exec|env|bash|sh|nohup|sudo|numactl|taskset|docker"
    r"|podman|nerdctl|srun|mpirun|torchrun|uv|python[\d.]*|sglang|vllm|mooncake_\w+)\s|^\s*\w+=\S+$",
    re.MULTILINE,
)
MANIFEST = re.compile(r"^(apiVersion|services|kind):", re.MULTILINE)
PLAIN_COMMAND = re.compile(r"(python3?|mooncake_\w+|sglang) [\w./:,=\[\]{}\"' -]+")
FLAGS = re.compile(r"^--tp-size ")


def kind_of(text: str) -> str | None:
    """Return what a text of the tests is: "script", "manifest", "flags", or None for no launch."""
    if FLAGS.search(text):
        return "flags"
    if MANIFEST.search(text) and "\n" in text:
        return "manifest"
    if PROGRAM.search(text) and FIRST_WORD.search(text):
        return "script"
    return None


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``count`` of the items, evenly spaced, always the same ones; all with 0."""
    wanted = min(count or len(items), len(items))
    return [items[number * len(items) // wanted] for number in range(wanted)]


def is_host(value: Any) -> bool:
    """Return whether ``value`` is a host that can be written."""
    return type(value).__name__ in HOST_WRITERS and dataclasses.is_dataclass(value)


class Corpus:
    """The folder that is being written; hosts are written last, and only those that are asked for.

    pairs: a host and a launch that a test puts together. skipped: what is not here, and why.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorded: list[str] = []
        self.written: dict[str, Any] = {}
        self.launches: dict[str, dict[str, Any]] = {}
        self.pairs: list[tuple[str, str]] = []
        self.skipped: dict[str, str] = {}
        self._known: dict[str, str] = {}  # digest of content -> name
        (folder / "hosts").mkdir(parents=True)
        (folder / "launches").mkdir()

    def add_host(self, source: str, host: Any) -> str:
        """Take a host unless it is known; return its name."""
        digest = _digest("host", repr(host))
        if digest not in self._known:
            name = _free(source, self.written)
            self.written[name] = host
            self._known[digest] = name
        return self._known[digest]

    def add_archive(self, path: Path) -> None:
        """Take a recorded machine."""
        shutil.copy(path, self.folder / "hosts" / path.name)
        self.recorded.append(path.name)

    def add_text(self, source: str, text: str, files: Mapping[str, str] | None = None) -> str:
        """Write a launch's text unless it is known; return its name."""
        kind = kind_of(text)
        assert kind is not None
        digest = _digest("launch", text, repr(sorted((files or {}).items())))
        if digest in self._known:
            return self._known[digest]
        name = _free(source, self.launches)
        self._known[digest] = name
        if kind == "flags":
            self.launches[name] = {"kind": "flags", "words": shlex.split(text)}
            return name
        # Every second that can be typed as it is, is typed after --.
        if not files and PLAIN_COMMAND.fullmatch(text.strip()) and len(self.launches) % 2:
            self.launches[name] = {"kind": "launch", "words": ["--", *shlex.split(text)]}
            return name
        place = self.folder / "launches" / name
        place.mkdir(parents=True)
        file = place / ("launch.yaml" if kind == "manifest" else "launch.sh")
        file.write_text(text if text.endswith("\n") else f"{text}\n", "utf-8", "surrogateescape")
        for beside, content in (files or {}).items():
            if not beside.startswith(("/", "..")):
                (place / beside).parent.mkdir(parents=True, exist_ok=True)
                (place / beside).write_text(content)
        self.launches[name] = {"kind": "launch", "words": [f"launches/{name}/{file.name}"]}
        return name

    def add_folder(self, label: str, folder: Path) -> None:
        """Copy a folder of launch files, what stands beside them too."""
        if not folder.is_dir():
            self.skipped[label] = f"{folder.name}: no such folder"
            return
        shutil.copytree(folder, self.folder / "launches" / label)
        for path in sorted(folder.rglob("*")):
            if path.suffix in LAUNCH_SUFFIXES and path.is_file():
                relative = path.relative_to(folder).as_posix()
                words = [f"launches/{label}/{relative}"]
                self.launches[f"{label}/{relative}"] = {"kind": "launch", "words": words}

    def finish(self, count: int) -> None:
        """Choose the pairs, and write their hosts and the index."""
        hosts = [*self.recorded, *self.written]
        pairs = {}
        for host, launch in self._chosen(count):
            start = hosts.index(host)
            for name in (*hosts[start:], *hosts[:start]):  # the next one where it is refused
                if self._host_is_there(name):
                    found = {"host": name, "launch": launch, **self.launches[launch]}
                    pairs[name, launch] = found
                    break
        counts = {"recorded": len(self.recorded), "written": len(self.written)}
        counts["launches"] = len(self.launches)
        index = {"pairs": list(pairs.values()), "counts": counts, "skipped": self.skipped}
        (self.folder / "index.json").write_text(json.dumps(index, indent=1))

    def _chosen(self, count: int) -> list[tuple[str, str]]:
        launches = list(self.launches)
        cycles = [names for names in (self.recorded, list(self.written)) if names]
        rounds = max((len(names) for names in cycles), default=0)
        ordered = dict.fromkeys(self.pairs)
        whole = 0
        for turn in range(rounds):
            for number, launch in enumerate(launches):
                for names in cycles:
                    ordered[names[(number + turn) % len(names)], launch] = None
            whole = whole or len(ordered)
            if len(ordered) >= count:
                break
        pairs = list(ordered)
        return spread(pairs if count > whole else pairs[:whole], count)

    def _host_is_there(self, name: str) -> bool:
        place = self.folder / "hosts" / name
        if place.exists() or f"host {name}" in self.skipped:
            return place.exists()
        host = self.written[name]
        writer = HOST_WRITERS[type(host).__name__]
        beside = getattr(sys.modules[type(host).__module__], writer, None)
        place.mkdir()
        try:
            if beside is None:
                getattr(host, writer)(place)
            else:
                beside(place, host)
        except Exception as error:  # a host that is made to be refused
            shutil.rmtree(place)
            self.skipped[f"host {name}"] = f"{type(error).__name__}: {error}"
            return False
        return True


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _free(source: str, taken: Mapping[str, Any]) -> str:
    """Return a name for what ``source`` holds, which no other has."""
    stem = re.sub(r"[^\w.-]+", "-", source).strip("-")[:70]
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


def take(corpus: Corpus, source: str, value: Any, depth: int = 0) -> tuple[list[str], list[str]]:
    """Add every host and launch in ``value``; return the names of those directly in it."""
    if depth > 6:
        return [], []
    if is_host(value):
        return [corpus.add_host(source, value)], []
    if isinstance(value, str):
        return [], ([corpus.add_text(source, value)] if kind_of(value) else [])
    if hasattr(value, "wrong") and hasattr(value, "right"):
        for side in ("wrong", "right"):
            text = _script(getattr(value, side))
            if kind_of(text):
                name = f"{getattr(value, 'id', source)}-{side}"
                corpus.add_text(name, text, getattr(value, "files", None))
        return [], []
    if isinstance(value, Mapping):
        for key, inner in list(value.items()):
            take(corpus, f"{source}-{key}" if isinstance(key, str) else source, inner, depth + 1)
        return [], []
    if type(value).__name__ == "ParameterSet":
        return take(corpus, source, value.values, depth + 1)
    if isinstance(value, tuple | list):
        hosts: list[str] = []
        launches: list[str] = []
        for inner in value:
            more_hosts, more_launches = take(corpus, source, inner, depth + 1)
            if not isinstance(inner, tuple | list):
                hosts += more_hosts
                launches += more_launches
        corpus.pairs += [(host, launch) for host in hosts[:2] for launch in launches[:2]]
        return hosts, launches
    return [], []


def _script(lines: Any) -> str:
    """Return an example's lines, each a command or (command, environment), as a script."""
    written = []
    one_alone = isinstance(lines, str) or isinstance(lines[-1], Mapping)
    for line in (lines,) if one_alone else lines:
        if hasattr(line, "words"):  # as a reader gives it, of an image
            text = shlex.join(word.text for word in line.words)
            environment = {name: word.text for name, word in line.environment.items()}
        else:
            text, environment = (line, {}) if isinstance(line, str) else line
        settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        written.append(" ".join((*settings, text)))
    return "\n".join(written) + "\n"


class Expressions:
    """What within a function needs nothing but its module's names and its own constants."""

    def __init__(self, corpus: Corpus, module: ModuleType, label: str) -> None:
        self._corpus = corpus
        self._module = module
        self._label = label

    def walk(self) -> None:
        """Take the hosts and launches of every function of the module."""
        tree = ast.parse(inspect.getsource(self._module))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._function(node)

    def _function(self, node: ast.FunctionDef) -> None:
        self._hosts: dict[str, None] = {}
        self._launches: dict[str, None] = {}
        self._body(f"{self._label}-{node.name}", node.body, {})
        if len(self._hosts) <= PAIRED_AT_MOST and len(self._launches) <= PAIRED_AT_MOST:
            self._corpus.pairs += itertools.product(self._hosts, self._launches)

    def _body(self, source: str, statements: list[ast.stmt], names: dict[str, Any]) -> None:
        for statement in statements:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                continue
            for expression in _outermost(statement):
                self._expression(source, expression, names)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name):
                    names.pop(target.id, None)
                    if (value := self._value(statement.value, names)) is not None:
                        names[target.id] = value
            for inner in ("body", "orelse", "finalbody"):
                self._body(source, getattr(statement, inner, []), names)

    def _expression(self, source: str, node: ast.expr, names: dict[str, Any]) -> None:
        value = self._value(node, names)
        if value is not None:
            hosts, launches = take(self._corpus, source, value)
            self._hosts |= dict.fromkeys(hosts)
            self._launches |= dict.fromkeys(launches)
            return
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.keyword):
                inner = inner.value
            if isinstance(inner, ast.expr):
                self._expression(source, inner, names)

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """Return what ``node`` is, or None where that is not known or would do something."""
        if isinstance(node, ast.Constant):
            return node.value
        scope = {**self._module.__dict__, **names}
        if isinstance(node, ast.Name) or not self._harmless(node, scope):
            return None
        try:
            value = eval(compile(ast.Expression(node), "<test>", "eval"), scope)
        except Exception:  # it needs a fixture or an argument
            return None
        return value if is_host(value) or isinstance(value, str | tuple | list) else None

    def _harmless(self, node: ast.expr, scope: Mapping[str, Any]) -> bool:
        """Return whether all that ``node`` calls does nothing but make a text or a host."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id not in scope:
                return False
            if isinstance(inner, ast.Lambda | ast.Await | ast.Yield | ast.comprehension):
                return False
            if isinstance(inner, ast.Call) and not self._makes_data(inner.func, scope):
                return False
        return True

    def _makes_data(self, function: ast.expr, scope: Mapping[str, Any]) -> bool:
        if isinstance(function, ast.Attribute):
            return function.attr in ("replace", "_replace", "join", "format", "strip", "splitlines")
        if not isinstance(function, ast.Name):
            return False
        called = scope.get(function.id)
        if called in (dataclasses.replace, str, tuple, list, dict, range):
            return True
        home = sys.modules.get(getattr(called, "__module__", ""))
        if home is None or not home.__name__.startswith("tests.") or hasattr(home, "subprocess"):
            return False
        if isinstance(called, type):
            return dataclasses.is_dataclass(called) or issubclass(called, tuple)
        return _returned(called) in ("str", "Line", *HOST_WRITERS)


def _outermost(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement itself; those of an assertion tell of answers."""
    if isinstance(statement, ast.Assert):
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.expr):
            yield node
        elif isinstance(node, ast.withitem):
            yield node.context_expr


def take_module(corpus: Corpus, module: ModuleType) -> None:
    """Take the constants of a module of the tests, its parametrized values and its expressions."""
    label = module.__name__.removeprefix("tests.").replace(".test_", ".").removeprefix("test_")
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        if callable(value) and getattr(value, "__module__", "") == module.__name__:
            for mark in getattr(value, "pytestmark", []):
                if mark.name == "parametrize":
                    take(corpus, f"{label}-{name}", mark.args[1:2])
            take(corpus, f"{label}-{name}", getattr(value, "rows", []))
            if not isinstance(value, type) and _makes_a_host(value):
                take(corpus, f"{label}-{name}", value())
        elif not isinstance(value, ModuleType | type):
            take(corpus, f"{label}-{name}", value)
    Expressions(corpus, module, label).walk()
    short = module.__name__.rpartition(".")[2]
    if short in STRATEGIES:
        take_drawn(corpus, f"{label}-drawn", getattr(module, STRATEGIES[short])())


def _makes_a_host(function: Any) -> bool:
    """Return whether ``function`` needs no argument and returns a host."""
    if _returned(function) not in HOST_WRITERS:
        return False
    needed = inspect.signature(function).parameters.values()
    return all(one.default is not one.empty for one in needed)


def _returned(function: Any) -> str:
    """Return the name of the type that ``function`` says it returns."""
    annotation = getattr(function, "__annotations__", {}).get("return", "")
    return str(getattr(annotation, "__name__", annotation))


def take_drawn(corpus: Corpus, source: str, strategy: Any) -> None:
    """Take the examples that a strategy draws, the same in every run."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    @seed(0)
    @settings(
        max_examples=DRAWN_EXAMPLES,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: Any) -> None:
        take(corpus, source, (case.host, case.script))

    draw()


def collect(tree: Path, shared: Path, folder: Path) -> Corpus:
    """Take all that ``tree`` and ``shared`` have."""
    corpus = Corpus(folder)
    for place in (tree / "tests" / "data", shared / "captures"):
        if not place.is_dir():
            corpus.skipped[place.name] = "no such folder"
        for path in sorted(place.rglob("*")):
            if ARCHIVE.search(path.name):
                corpus.add_archive(path)
    for name in LAUNCH_FOLDERS:
        corpus.add_folder(name.replace("/", "-"), tree / name)
    for name in SHARED_LAUNCH_FOLDERS:
        corpus.add_folder(f"shared-{name.replace('/', '-')}", shared / name)
    for path in sorted((tree / "tests").rglob("*.py")):
        name = ".".join(path.relative_to(tree).with_suffix("").parts)
        if path.name in ("__init__.py", "conftest.py"):
            continue
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # pytest's Skipped is no Exception
            corpus.skipped[name] = f"{type(error).__name__}: {error}"
            continue
        take_module(corpus, module)
    return corpus


def main() -> None:
    """Collect what the command line names."""
    del sys.path[0]
    tree, shared, folder = (Path(word).resolve() for word in sys.argv[1:4])
    os.chdir(tree)
    collect(tree, shared, folder).finish(int(sys.argv[4]))


if __name__ == "__main__":
    main()
