"""Packages import in one order, written down here; checks/ knows hosts, preflight/ launches."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

MODULES = sorted([*ROOT.glob("checks/**/*.py"), *ROOT.glob("preflight/**/*.py")])
# Their trees are read once: the first that needs them takes two seconds.
pytestmark = pytest.mark.slow
# A package imports only those before it.
ORDER = [
    "checks.base",
    "checks.releases",
    "checks.capture",
    "checks.numa",
    "checks.rdma",
    "checks.system",
    "checks.pci",
    "checks.limits",
    "checks.memlock",
    "checks.memory",
    "checks.hugetlb",
    "checks.gpu",
    "checks.network",
    "checks.software",
    "checks.storage",
    "checks.placement",
    "checks.running",
    "checks.run",
    "preflight.base",
    "preflight.render",
    "preflight.verbs",
    "preflight.traces",
    "preflight.launches",
    "preflight.programs",
    "preflight.consumers",
    "preflight.processes",
    "preflight.mooncake",
    "preflight.sglang",
    "preflight.rules",
    "preflight.sizing",
    "preflight.inputs",
    "preflight.judging",
    "preflight.advisories",
    "preflight.reading",
    "preflight.settings",
    "preflight.check",
    "preflight.capacity",
    "preflight.topology",
    "preflight.pictures",
    "preflight.fit",
    "preflight.diff",
    "preflight.logs",
    "preflight.rehearsal",
    "preflight.probes",
    "preflight.measuring",
    "preflight.observing",
    "preflight.fleet",
    "preflight.cli",
]
# Where every function's docstring begins with a verb.
AREA = ("checks", "preflight", "mooncake_preflight.py", "tools")
# First words that are no verb. A name is none either, nor a word that ends in one "s".
NO_VERBS = frozenset(
    """
    A About After All Also Alone An And Any As At Before Behind Beside Between Beyond Both But By
    Coloured Each Either Every Everything Exactly Few For Free From Given Half Here How If In Into
    It Just Kernel Least Less Like Many Memory Met More Most Much Neither Never No Nobody Node None
    Not Nothing Of On One Only Or Other Our Out Over Own Per Plain Said Same Several Similar Since
    So Some Sorted Standard Such Text That The Their Them Then There These They This Those Though
    Through To Together Told Twice Two Under Until Up Variable Waived What Whatever When Where
    Whether Which Whichever Who Whoever Whose Why With Within Without Written
    """.split()
)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all that a file's tree has."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Modules of this project that a file imports, wherever it does so."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("checks", "preflight")}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def packages(top: str) -> dict[str, set[str]]:
    """Each package of ``top``, and those beside it that it imports."""
    known = {package_of(name_of(path)) for path in MODULES if path.parent.parent.parent == ROOT}
    found: dict[str, set[str]] = {}
    for path in MODULES:
        package = package_of(name_of(path))
        if package.startswith(f"{top}.") and package in known:
            others = {package_of(name) for name in imports(path)} - {package}
            found[package] = found.get(package, set()) | (others & known)
    return found


def test_checks_import_no_preflight() -> None:
    own = [path for path in MODULES if path.relative_to(ROOT).parts[0] == "checks"]
    assert len(own) > 80
    found = {(name_of(path), name) for path in own for name in imports(path)}
    assert not {pair for pair in found if pair[1].startswith("preflight")}


@pytest.mark.parametrize("top", ["checks", "preflight"])
def test_packages_import_in_one_order(top: str) -> None:
    found = packages(top)
    assert set(found) <= set(ORDER), "write the package's place in the order down"
    for package, others in found.items():
        assert others <= set(ORDER[: ORDER.index(package)]), package


def test_there_are_no_circles() -> None:
    known = {name_of(path) for path in MODULES}
    graph = {name_of(path): imports(path) & known for path in MODULES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for imported in sorted(graph[module]):
                visit(imported, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_a_package_says_what_is_in_it() -> None:
    """A stranger opens the room and reads there what it holds, and what it may touch."""
    silent = []
    for path in MODULES:
        if path.name == "__init__.py" and "fleet" not in path.parts:
            said = ast.get_docstring(ast.parse(path.read_text())) or ""
            if not said.endswith(".") and ". " not in said and ".\n" not in said:
                silent.append(name_of(path))
    assert not silent


def test_a_class_name_means_one_thing() -> None:
    """Both packages together, so that a name in a finding or an import has one home."""
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", AREA)
def test_docstrings_begin_with_a_verb(package: str) -> None:
    """A property is named by a noun; any other function says first what it does or returns."""
    place = ROOT / (package if package.endswith(".py") else package.replace(".", "/"))
    wrong = []
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            said = ast.get_docstring(node)
            if said and not any("property" in ast.unparse(each) for each in node.decorator_list):
                first = said.split()[0].rstrip(",")
                if not re.fullmatch(r"[A-Z][a-z]*(?:[a-rt-z]|ss)", first) or first in NO_VERBS:
                    wrong.append(f"{path.name}:{node.lineno} {node.name}: {said.splitlines()[0]}")
    assert place.exists()
    assert not wrong, "\n".join(wrong)
