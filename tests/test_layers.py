"""checks/ knows hosts, preflight/ knows launches: preflight imports checks, never the reverse."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted([*ROOT.glob("checks/**/*.py"), *ROOT.glob("preflight/**/*.py")])


@cache
def imports(path: Path) -> set[str]:
    """Modules of this project that a file imports, wherever it does so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("checks", "preflight")}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] == "checks"], ids=name_of
)
def test_checks_import_no_preflight(path: Path) -> None:
    assert not {name for name in imports(path) if name.startswith("preflight")}


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
