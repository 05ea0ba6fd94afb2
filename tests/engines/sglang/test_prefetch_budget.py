"""The prefetch budget against SGLang's own expression of it, release by release.

The expressions are those of HiCacheController.attach_storage_backend, as ``ast.unparse`` writes
them; with MOONCAKE_PREFLIGHT_SGLANG=1 they are read again in the wheels.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang_wheels import unpacked

from checks.framework.unknown import Unknown
from checks.releases.sglang import sglang_release
from preflight.cache_sizing.capacity.deployment import Bounds
from tests.builders.capacity_launches import STORED, server_of
from tests.tables import each_row

_DIFFERENCE = "int(0.8 * (self.mem_pool_host.size - self.mem_pool_device.size))"
_HALF = "int(0.5 * self.mem_pool_host.size)"
_BUFFERS = "int(HICACHE_LOAD_POOL_USAGE_FRACTION * self.mem_pool_host.size)"
# With --hicache-host-memory-mode buffer_only the first, where there are two.
EXPRESSIONS = {
    "0.5.4": (_DIFFERENCE,),
    "0.5.8": (_DIFFERENCE,),
    "0.5.9": (f"max(0, {_DIFFERENCE})",),
    "0.5.10.post1": (f"max(0, {_DIFFERENCE})",),
    "0.5.14": (f"max(0, {_DIFFERENCE})",),
    "0.5.15": (_HALF,),
    "0.5.20": (_BUFFERS, _HALF),
    "0.5.23": (_BUFFERS, "int(0.5 * self.mem_pool_host.logical_size)"),
}


@each_row("version", EXPRESSIONS)
def test_the_budget_is_what_the_release_computes(version: str) -> None:
    rng, release = random.Random(version), sglang_release(version)
    for _ in range(200):
        device, host = rng.randrange(1, 1 << rng.randrange(1, 34)), rng.randrange(1 << 34)
        pools = {
            "mem_pool_host": SimpleNamespace(size=host, logical_size=host),
            "mem_pool_device": SimpleNamespace(size=device),
        }
        names = {"self": SimpleNamespace(**pools), "HICACHE_LOAD_POOL_USAGE_FRACTION": 0.9}
        told = [eval(one, names) for one in EXPRESSIONS[version]]
        budgets = (release.prefetch_budget(device, host, buffers) for buffers in (True, False))
        assert list(budgets) == [told[0], told[-1]]


@pytest.mark.sglang
@pytest.mark.parametrize("version", EXPRESSIONS)
def test_the_expressions_are_the_releases_own(version: str) -> None:
    assert expressions(unpacked(version)) == EXPRESSIONS[version]


def expressions(folder: Path) -> tuple[str, ...]:
    """What a wheel's cache controller sets the limit to, in the order of the source."""
    source = folder / "sglang/srt/managers/cache_controller.py"
    return tuple(
        ast.unparse(node.value)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]).endswith(".prefetch_capacity_limit")
    )


L2 = STORED.format(model="Qwen/Qwen3-8B", tp=1, size=20, segment="64gb")


@pytest.mark.parametrize(
    ("version", "options", "wanted"),
    [
        ("0.5.14", "--max-total-tokens 100000", "difference"),
        ("0.5.14", "", "unknown"),
        ("0.5.23", "--hicache-host-memory-mode buffer_only", "buffers"),
    ],
)
def test_the_budget_follows_the_release(
    version: str, options: str, wanted: str, tmp_path: Path
) -> None:
    found = server_of(tmp_path, f"{L2} {options}", sglang=version)
    assert found.tiers.host is not None
    assert isinstance(found.tiers.host.tokens, Bounds)
    budget, host = found.capacity.prefetch, found.tiers.host.tokens.most
    if wanted == "unknown":
        assert isinstance(budget, Unknown)
        return
    most = int(0.9 * host) if wanted == "buffers" else int(0.8 * (host - 99_968))
    assert isinstance(budget, Bounds)
    assert budget.most == most
