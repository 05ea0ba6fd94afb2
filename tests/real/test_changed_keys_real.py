"""The key code of two SGLang releases between which keys changed, and what ``diff`` says."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import build_host, gpu_host
from tests.real.conftest import install

pytestmark = pytest.mark.real
OLD, NEW = "0.5.7", "0.5.8"
MODELS = {False: "Qwen/Qwen3-14B", True: "deepseek-ai/DeepSeek-V3"}


def module(release: str, name: str) -> ast.Module:
    return ast.parse((install("sglang", release) / "sglang/srt/mem_cache" / name).read_text())


def written(release: str, latent: bool, stages: int) -> set[str]:
    """What both ranks of the last stage write of one page: SGLang's own functions, cut out of its
    wheel, since their module imports torch."""
    tree = module(release, "storage/mooncake_store/mooncake_store.py")
    wanted = "_get_mla_buffer_meta" if latent else "_get_mha_buffer_meta"
    names: dict[str, Any] = {}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == wanted]
    exec(compile(ast.Module(list(functions), []), release, "exec"), names)
    suffixes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "self.enable_pp"
    ]
    found: set[str] = set()
    for rank in range(2):
        store = SimpleNamespace(local_rank=rank, pp_rank=stages - 1, enable_pp=stages > 1)
        rows = [0] if latent else [0, 0]
        store.mem_pool_host = SimpleNamespace(
            get_page_buffer_meta=lambda _, rows=rows: (rows, rows)
        )
        exec(compile(ast.Module(list(suffixes[:1]), []), release, "exec"), {"self": store})
        found.update(names[wanted](store, ["page"], [])[0])
    return found


def test_a_page_is_hashed_alike() -> None:
    """So that the rest of a key decides."""
    hashes = {
        ast.dump(node)
        for release in (OLD, NEW)
        for node in ast.walk(module(release, "hicache_storage.py"))
        if isinstance(node, ast.FunctionDef) and node.name == "get_hash_str"
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_diff_says_of_keys_what_the_code_does(
    latent: bool, stages: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (written(release, latent, stages) for release in (OLD, NEW))
    assert (old == new) is (not latent and stages == 1)
    host = build_host(tmp_path / "root", gpu_host())
    (tmp_path / "launch.sh").write_text(
        "MOONCAKE_MASTER=127.0.0.1:50051 python3 -m sglang.launch_server --tp 2 --page-size 64 "
        f"--model-path {MODELS[latent]} --pp-size {stages} --enable-hierarchical-cache "
        "--hicache-size 4 --hicache-storage-backend mooncake\n"
    )
    versions = ("--from", f"sglang={OLD}", "--to", f"sglang={NEW}", "--mooncake-version", "0.3.8")
    run(["diff", "--json", "--root", str(host), *versions, str(tmp_path / "launch.sh")])
    changes = json.loads(capsys.readouterr().out)["answer"]["changes"]
    keys = {row["name"]: row for row in changes if row["section"] == "keys"}
    assert any(name.startswith("named: ") for name in keys) is (old != new)
    if old != new:
        ends = {"from": old, "to": new}
        for side, real in ends.items():
            shape = keys["key"][side].partition("<sha256 of a page>")[2]
            said = {shape.replace("<rank>", str(rank)) for rank in range(2)}
            said = {each.replace("<stage>", str(stages - 1)) for each in said}
            assert {f"page{each}" for each in said} == {key for key in real if key.endswith("_k")}
