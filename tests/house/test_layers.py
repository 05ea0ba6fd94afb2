"""Packages import in one order, written down here; checks/ knows hosts, preflight/ launches."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

MODULES = sorted([*ROOT.glob("checks/**/*.py"), *ROOT.glob("preflight/**/*.py")])
# Their trees are read once: the first that needs them takes two seconds.
pytestmark = pytest.mark.slow
# A room imports only those before it.
ORDER = [
    "checks.framework",
    "checks.releases",
    "checks.host_snapshot",
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
    "checks.running_processes",
    "checks.run_checks",
    "preflight.base",
    "preflight.launches",
    "preflight.engines",
    "preflight.processes",
    "preflight.needs",
    "preflight.command_inputs",
    "preflight.launch_problems",
    "preflight.host_tuning",
    "preflight.verdict",
    "preflight.report",
    "preflight.server_logs",
    "preflight.cache_sizing",
    "preflight.benchmark",
    "preflight.live_servers",
    "preflight.fleet",
    "preflight.cli",
]
# Rooms that judging a launch needs none of. The file of a command imports them inside a function.
BEYOND_THE_CORE = ("cache_sizing", "benchmark", "live_servers", "fleet")
# Which commands import a room beyond the core.
COMMAND_ROOMS = {
    "capacity": {"cache_sizing", "benchmark"},  # --measured: what each tier's rates make of it
    "fit": {"cache_sizing", "benchmark"},
    "trace": {"cache_sizing"},
    "check": {"benchmark", "cache_sizing"},  # hands in what --measured says, and the page's tiers
    "measure": {"benchmark"},
    "observe": {"live_servers"},
    "capture": {"live_servers"},  # --running: hands in the record of what runs
    "fleet": {"fleet", "benchmark"},  # the least budget of its measure
}
# Imports against the order, each with its reason. This list may only shrink.
AGAINST_THE_ORDER: dict[tuple[str, str], str] = {}


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
    against = {
        (package, other)
        for package, others in found.items()
        for other in others - set(ORDER[: ORDER.index(package)])
    }
    allowed = {pair for pair in AGAINST_THE_ORDER if pair[0].startswith(f"{top}.")}
    assert against == allowed, "an import against the order, or a reason that is not needed"


def test_the_core_imports_nothing_beyond_it() -> None:
    """Only the file of a command does, inside a function, and only the rooms of its row."""
    rooms: dict[str, set[str]] = {}
    for path in MODULES:
        _, _, *own = name_of(path).split(".")
        room = package_of(name_of(path)).partition(".")[2]
        beyond = {package_of(name).partition(".")[2] for name in imports(path)}
        beyond &= set(BEYOND_THE_CORE) - {room}
        if room == "cli" and beyond:
            rooms[own[-1]] = beyond
        elif room not in BEYOND_THE_CORE and beyond:
            assert {(f"preflight.{room}", f"preflight.{other}") for other in beyond} <= set(
                AGAINST_THE_ORDER
            ), path
    assert rooms == COMMAND_ROOMS


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
