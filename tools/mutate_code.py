"""Change one comparison, constant, boolean or ``not`` of the code, and see whether a test fails.

``python tools/mutate_code.py --count 200 --seed 50 --report mutants.json`` draws that many mutants
of what judges and replays. Each runs against the quick tests that reach its line, those that reach
the least first, until one fails. What survives is printed: a mutant that means the same, or a fact
that no test holds.

Which test reaches which line is written once (``--map``, by ``pip install coverage pytest-cov``),
in the time of three runs of the quick tests; make it anew when the code or the tests move. A report
that is there already is used again: the test that killed a mutant is tried first.

No file is changed: the process of a mutant reads the changed module in place of the real one. A
test that starts a process would run the real one, so none does.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JUDGES = (
    "preflight/verdict/*.py",
    "preflight/launch_problems/**/*.py",
    "preflight/engines/**/*.py",
    "preflight/needs/*.py",
    "checks/*/judge.py",
    "checks/*/*_checks.py",
)
FIRST_TESTS = 25  # tried before files of more tests are read: these kill most
MOST_TESTS = 400
LONGEST_SECONDS = 90  # of processor time, for a mutant that does not end
# What every mutant's process needs, and has nothing of this project.
SHARED = ("click", "hypothesis", "jsonschema", "packaging.version", "psutil", "tree_sitter", "yaml")

COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="} | {
    "in": "not in", "not in": "in", "is": "is not", "is not": "is"
}  # fmt: skip
OPERATORS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


Lines = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    start: int  # where its text begins and ends in the file, in bytes
    end: int
    old: str
    new: str
    within: Lines  # lines whose tests are its own, beside those of its line
    name: str  # of what it gives a value to outside of any function, or nothing

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old} -> {self.new}"

    def source(self) -> bytes:
        """Return the whole file as the mutant has it."""
        text = (ROOT / self.file).read_bytes()
        return text[: self.start] + self.new.encode() + text[self.end :]


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text = (ROOT / file).read_bytes()
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def mutant(start: int, end: int, new: str, within: Lines, name: str) -> Mutant:
        line = text.count(b"\n", 0, start) + 1
        return Mutant(file, line, start, end, text[start:end].decode(), new, within, name)

    def of_operator(
        left: ast.expr, right: ast.expr, old: str, new: str, within: Lines, name: str
    ) -> Iterator[Mutant]:
        start, end = place(left)[1], place(right)[0]
        words = r"\s+".join(re.escape(word) for word in old.split())
        found = re.search(rf"(?<![<>=!\w]){words}(?![<>=\w])", text[start:end].decode())
        if found:
            yield mutant(start + found.start(), start + found.end(), new, within, name)

    def visit(node: ast.AST, within: Lines, name: str) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):  # what is in it has no place before Python 3.12
            return
        if isinstance(node, ast.stmt):
            within = node.lineno, node.lineno
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = name and node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = name and node.target.id
        elif isinstance(node, ast.FunctionDef):  # its defaults are made at import: who calls it?
            within, name = (node.body[0].lineno, node.end_lineno or 0), ""
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for number, operator in enumerate(node.ops):
                old = OPERATORS[type(operator)]
                left, right = sides[number : number + 2]
                yield from of_operator(left, right, old, COMPARED[old], within, name)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from of_operator(node.values[0], node.values[1], old, new, within, name)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, _ = place(node)
            yield mutant(start, start + len("not "), "", within, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            new = str(not value if isinstance(value, bool) else value + 1)
            if isinstance(value, float):
                new = repr(value * 1.02 or 0.02)
            yield mutant(*place(node), new, within, name)
        for field, inner in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            for one in inner if isinstance(inner, list) else [inner]:
                if isinstance(one, ast.AST):
                    yield from visit(one, within, name)

    yield from visit(tree, (1, 1), "a module")


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return that many mutants, the same for a seed as long as the code is."""
    files = sorted({path for pattern in JUDGES for path in ROOT.glob(pattern)})
    every = [one for path in files for one in mutants_of(str(path.relative_to(ROOT)))]
    return random.Random(seed).sample(every, min(count, len(every)))


def _folder(files: Sequence[tuple[int, str]]) -> str:
    """Return the root of the tree that was measured, which may be another copy of this one."""
    common = os.path.commonpath([path for _, path in files])
    return common if Path(common, "checks").is_dir() else str(Path(common).parent)


class Reached:
    """Which tests reach a line, by the tables of coverage (its page *dbschema* describes them)."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path)
        self.tests = dict(self.database.execute("select id, context from context"))
        counted = self.database.execute("select context_id, count(*) from arc group by context_id")
        # What reaches little is tried before what reaches all.
        self.lines_of = {self.tests[number]: lines for number, lines in counted}
        files = self.database.execute("select id, path from file").fetchall()
        self.files = {path.removeprefix(f"{_folder(files)}/"): number for number, path in files}

    @cache  # noqa: B019  # one object in a run
    def of_file(self, file: str) -> dict[int, set[str]]:
        query = "select distinct context_id, tono from arc where file_id = ?"
        found: dict[int, set[str]] = defaultdict(set)
        for test, line in self.database.execute(query, [self.files.get(file, 0)]):
            if self.tests[test]:
                found[line].add(self.tests[test])
        return found

    @cache  # noqa: B019
    def of_name(self, name: str) -> set[str]:
        """Return the tests that reach a line with that word, in any file."""
        found = set()
        for path in [*ROOT.glob("checks/**/*.py"), *ROOT.glob("preflight/**/*.py")]:
            text = path.read_text()
            if name in text:
                reached = self.of_file(str(path.relative_to(ROOT)))
                for number, line in enumerate(text.splitlines(), 1):
                    if re.search(rf"\b{name}\b", line):
                        found |= reached.get(number, set())
        return found

    def by(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the mutant, those that reach the least first."""
        lines = self.of_file(mutant.file)
        first, last = mutant.within
        found: set[str] = set().union(
            *(lines.get(line, ()) for line in (mutant.line, *range(first, last + 1)))
        )
        if mutant.name:
            found = found | (self.of_name(mutant.name) or set().union(*lines.values()))
        ordered = sorted(found, key=lambda test: (self.lines_of[test], test))
        return list(dict.fromkeys(test.partition("|")[0] for test in ordered))[:MOST_TESTS]


def first_failure(mutant: Mutant, tests: Sequence[str]) -> str:
    """Return the first of these tests that fails with the mutant, or nothing."""
    if not tests:
        return ""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with suppress(BaseException):
            os.write(writer, _failure_here(mutant, tests).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    _, status = os.waitpid(child, 0)
    return "its time" if status else found


def _failure_here(mutant: Mutant, tests: Sequence[str]) -> str:
    """Run the tests in this process, which is the mutant's own."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    changed, source, plain = str(ROOT / mutant.file), mutant.source(), SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> object:
        if loader.path == changed:
            return compile(source, changed, "exec", dont_inherit=True)
        return plain(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]

    class First:
        failed = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and not self.failed:
                self.failed = report.nodeid

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed and not self.failed:
                self.failed = report.nodeid or "collecting"

    first = First()
    words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:cov", "--dist", "no"]
    words += ["-m", "not slow", "--tb=no", "-W", "ignore"]
    try:
        code = pytest.main([*words, *tests], plugins=[first])
    except BaseException:
        return "an import"
    return first.failed or ("an import" if code not in (0, 1, 5) else "")


def write_map(path: Path) -> None:
    """Run the quick tests once, and note which lines each reaches."""
    quick = ["-q", "-m", "not slow", "--dist", "no"]
    coverage = "--cov=checks --cov=preflight --cov-branch --cov-context=test --cov-report=".split()
    subprocess.run(
        [sys.executable, "-m", "pytest", *quick, *coverage],
        cwd=ROOT,
        env={**os.environ, "COVERAGE_FILE": str(path)},
        check=True,
    )


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--seed", type=int, default=50)
    options.add_argument("--map", type=Path, default=ROOT / ".cache" / "reached.coverage")
    options.add_argument("--report", type=Path, default=ROOT / ".cache" / "mutants.json")
    given = options.parse_args()
    given.map.parent.mkdir(exist_ok=True)
    if not given.map.exists():
        write_map(given.map)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    for module in SHARED:
        __import__(module)
    before = json.loads(given.report.read_text()) if given.report.exists() else {}
    reached, killers = Reached(given.map), {}
    for mutant in drawn(given.count, given.seed):
        tests = reached.by(mutant)
        known = [test for test in tests if test == before.get(str(mutant))]
        killers[str(mutant)] = (
            first_failure(mutant, known)
            or first_failure(mutant, tests[:FIRST_TESTS])
            or first_failure(mutant, tests[FIRST_TESTS:])
        )
        if not killers[str(mutant)]:
            print(f"survives {len(tests)} tests: {mutant}", flush=True)
        given.report.write_text(json.dumps(before | killers, indent=1))
    killed = sum(map(bool, killers.values()))
    print(f"{killed} of {len(killers)} killed ({killed / len(killers):.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
