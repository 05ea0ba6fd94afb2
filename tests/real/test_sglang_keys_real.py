"""SGLang's own code of keys against the derived ones: what two servers, or releases, write.

Its MooncakeStore of the wheel is set up without what SGLang imports for a GPU, once for each rank,
and names the pages of one text. Its page hash is C++ there: SHA-256 over the same units stands in.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.cli.main import run
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.builders.examples import few_changed, seeded
from tests.builders.synthetic import build_host, gpu_host
from tests.engines.consumers.test_store_keys import sized
from tests.real.conftest import install

pytestmark = pytest.mark.real
SERVERS = 46  # 1,035 pairs
# A line of keys for each server of stdin: [config of each rank, page size, whether of pairs].
ORACLE = """
import hashlib, importlib.abc, importlib.machinery, importlib.util, json, os, sys, types
OWN = ("sglang.srt.mem_cache.storage.mooncake_store.mooncake_store",
       "sglang.srt.mem_cache.cpp_utils.native_hash")
class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"get": staticmethod(lambda *a: None)})
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in OWN:
            file = os.path.join(sys.argv[1], *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, file)
        if name == "sglang.srt.distributed.parallel_state":
            raise ImportError("no transfer engine to share")
        if name.split(".")[0] in ("sglang", "torch", "requests", "mooncake"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        module.__path__ = []
sys.meta_path.insert(0, Finder())
import importlib
store_module, native = map(importlib.import_module, OWN)
class Mooncake:
    def setup(self, *_args, **_more):
        return 0
class Config:
    check_server = enable_ssd_offload = standalone_storage = False
    device_name = ssd_offload_path = None
    global_segment_size, tenant_id = 4 << 30, store_module.DEFAULT_TENANT_ID
    local_hostname = metadata_server = protocol = master_server_address = ""
class Store(store_module.MooncakeStore):
    def _import_mooncake_store(self):
        return Mooncake
    def _load_config(self, _storage):
        return Config
    def warmup(self):
        pass
class Pool:
    def __init__(self, page_size):
        self.page_size = page_size
    def get_page_buffer_meta(self, indices):
        count = len(indices) // self.page_size * self.of_page
        return [0] * count, [0] * count
    def get_split_heads_page_buffer_meta(self, indices, factor):
        count = len(indices) // self.page_size * self.of_page * factor
        return [0] * count, [0] * count
class Hash:
    def get_hash(self, raw, length, width, pairs, prior, page):
        units = [tuple(raw[at : at + 2]) if pairs else raw[at] for at in range(length)]
        found, digest = [], prior or b""
        for at in range(0, length - page + 1, page):
            digest = hashlib.sha256(digest + repr(units[at : at + page]).encode()).digest()
            found.append(digest.hex())
        return found
native._load_native_hash_module = Hash
class Key:
    def __init__(self, is_bigram):
        self.token_ids, self.is_bigram = list(range(257)), is_bigram
    def __len__(self):
        return 256
for line in sys.stdin:
    ranks, page, pairs = json.loads(line)
    keys = []
    for config in ranks:
        store = Store(types.SimpleNamespace(**config))
        store.mem_pool_host = Pool(page)
        store.mem_pool_host.of_page = 1 if config["is_mla_model"] else 2
        pages = native.get_native_hash(Key(pairs), None, page)
        named = store._tag_keys(pages)
        keys += store._batch_preprocess(named, range(page * len(pages)))[0]
    print(json.dumps(sorted(set(keys))))
"""
MODELS = {"Qwen/Qwen3-8B": False, "deepseek-ai/DeepSeek-R1": True}
CHOICES: dict[str, list[Any]] = {
    "model": list(MODELS),
    "tp": [1, 2, 4, 8],
    "pp": [1, 2],
    "dp": [1, 1, 2],
    "page": [32, 64],
    "draft": [False, False, True],
    "served": [None, None, "q"],
    "extra": [{}, {}, {"extra_backend_tag": "t"}, {"tp_lcm_size": 8}],
    "layout": ["page_first", "page_head"],
}


def line(one: dict[str, Any], port: int) -> str:
    words = [
        "MOONCAKE_MASTER=10.0.0.1:50051 python3 -m sglang.launch_server",
        f"--model-path {one['model']} --tp {one['tp']} --pp-size {one['pp']} --port {port}",
        f"--page-size {one['page']} --hicache-mem-layout {one['layout']} --hicache-size 1",
        "--enable-hierarchical-cache --hicache-storage-backend mooncake",
        f"--hicache-storage-backend-extra-config '{json.dumps(one['extra'])}'",
    ]
    if one["dp"] > 1:
        words.append(f"--dp {one['dp']} --enable-dp-attention")
    if one["draft"]:
        words.append("--speculative-algorithm EAGLE --speculative-draft-model-path d")
    if one["served"]:
        words.append(f"--served-model-name {one['served']}")
    return " ".join(words)


def ranks(one: dict[str, Any]) -> list[dict[str, Any]]:
    """What the cache controller hands to each rank's store (_generate_storage_config)."""
    tp, mla, extra = one["tp"] // one["dp"], MODELS[one["model"]], dict(one["extra"])
    lcm = extra.pop("tp_lcm_size", None)
    config = {
        "tp_size": tp,
        "pp_size": one["pp"],
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": mla,
        "enable_storage_metrics": False,
        "model_name": one["served"] or one["model"],
        "tp_lcm_size": lcm,
        "should_split_heads": bool(lcm and not mla and one["layout"] == "page_head" and lcm > tp),
        "dp_rank": 0,
        "extra_config": extra,
        "dcp_size": 1,
        "dcp_rank": 0,
        "logical_page_size": None,
    }
    places = [(rank, stage) for rank in range(tp) for stage in range(one["pp"])]
    return [{**config, "tp_rank": rank, "pp_rank": stage} for rank, stage in places]


def test_keys_meet_as_sglangs_own_do(tmp_path: Path) -> None:
    folder = install("sglang", "0.5.23")
    drawn = few_changed(seeded(), CHOICES, SERVERS)
    servers = [{**one, "dp": min(one["dp"], one["tp"])} for one in drawn]
    program = tmp_path / "oracle.py"
    program.write_text(ORACLE)
    asked = [json.dumps([ranks(one), one["page"], one["draft"]]) + "\n" for one in servers]
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        input="".join(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    own = [frozenset(json.loads(text)) for text in done.stdout.splitlines()]
    assert len(own) == SERVERS, done.stderr[-2000:]
    lines = [line(one, 31000 + at) for at, one in enumerate(servers)]
    keys = launch_keys(sized(tmp_path, *lines))
    assert len(keys) == SERVERS
    met = dict.fromkeys((Meeting.EQUAL, Meeting.COLLIDE, Meeting.NEVER), 0)
    for first, second in combinations(range(SERVERS), 2):
        found = compare_keys(keys[first], keys[second])
        both = (servers[first], servers[second], found.verdict, found.reasons)
        assert (found.verdict is not Meeting.NEVER) == bool(own[first] & own[second]), both
        assert found.verdict is not Meeting.EQUAL or own[first] == own[second], both
        met[found.verdict] += 1
    assert all(met.values()), met


OLD, NEW = "0.5.7", "0.5.8"
BY_LATENT = {False: "Qwen/Qwen3-14B", True: "deepseek-ai/DeepSeek-V3"}


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
        f"--model-path {BY_LATENT[latent]} --pp-size {stages} --enable-hierarchical-cache "
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
