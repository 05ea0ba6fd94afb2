"""Which packages start processes, and which open sockets: these and no others."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.house.test_layers import MODULES, name_of, nodes, package_of

pytestmark = pytest.mark.slow

_HOW = ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
# By what a module imports, or calls of ``os``.
MEANS = {
    "starts processes": {
        *("subprocess", "multiprocessing", "pty", "asyncio", "concurrent.futures"),
        *("os.fork", "os.forkpty", "os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp"),
        *(f"os.{start}{how}" for start in ("exec", "spawn") for how in _HOW),
    },
    "opens sockets": {"socket", "socketserver", "ssl", "http.client", "urllib.request", "ftplib"},
}
# A launch is read, understood, sized and judged by packages that stand in neither line.
ALLOWED = {
    "starts processes": {
        "checks.framework",  # tries system calls in a child that may be killed
        "checks.network",  # asks a master with Mooncake's own client, which may hang
        "checks.placement",  # asks the installed library in a child
        "preflight.cli",  # exec judges in a child that can be left behind
        "preflight.benchmark",
    },
    "opens sockets": {
        "checks.network",
        "checks.rdma",  # netlink
        "preflight.benchmark",  # talks to its processes; by which address a host is reached
    },
}


@cache
def named(path: Path) -> set[str]:
    """Return the modules that a file imports, and the members of ``os`` that it names."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


@pytest.mark.parametrize("what", MEANS)
def test_no_other_package_does_it(what: str) -> None:
    """A new one is a decision: it stands here, with its reason, and in its package's docstring."""
    found = {package_of(name_of(path)) for path in MODULES if named(path) & MEANS[what]}
    assert found == ALLOWED[what]
