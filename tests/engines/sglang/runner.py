"""Builds SGLang's real host-pool classes on CPU torch, and prints what they allocate.

    PYTHONPATH=tools python tests/engines/sglang/runner.py FOLDER < cases.json > results.json

FOLDER holds one release's unpacked wheel (``sglang/``). Memory is mapped lazily, so that pools of
any size fit; kernels, and the parts of SGLang that host pools do not use, are stand-ins. Needs
torch, numpy, msgspec, psutil, orjson, pybase64, requests, pydantic, transformers, pyzmq, fastapi,
tqdm, pillow, aiohttp and setproctitle.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import math
import mmap
import operator
import sys
import types
from typing import Any

from sglang_stand_ins import Finder

# Not installed, or of no use to a host pool: importing them gives stand-ins.
OUTSIDE = frozenset(
    "triton sgl_kernel flash_attn torchcodec torchada torch_memory_saver torchvision IPython "
    "pynvml cuda multipart mooncake".split()
)
INSIDE = tuple(
    f"sglang.{name}"
    for name in (
        "kernels jit_kernel srt.layers srt.configs srt.model_executor srt.model_loader "
        "srt.sampling srt.entrypoints srt.server_args srt.distributed srt.constrained "
        "srt.managers srt.speculative srt.arg_groups srt.disaggregation srt.lora "
        "srt.utils.custom_op"
    ).split()
)

torch: Any = importlib.import_module("torch")
psutil: Any = importlib.import_module("psutil")


class Recorder:
    """Every large tensor that a pool allocates, mapped lazily."""

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []
        self._empty = torch.empty

    def tensor(self, dims: Any, dtype: Any = None, **_: Any) -> Any:
        size = math.prod(dims) * dtype.itemsize
        self.sizes_bytes.append(size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        area = mmap.mmap(-1, max(size, 1), flags=flags)
        return torch.frombuffer(area, dtype=dtype, count=math.prod(dims)).reshape(dims)

    def empty(self, *dims: Any, **options: Any) -> Any:
        """In place of torch.empty: releases to 0.5.6 call it for the pool itself."""
        shape = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
        if options.get("device") == "cpu" and options.get("dtype") and math.prod(shape):
            return self.tensor(tuple(shape), options["dtype"])
        return self._empty(*dims, **options)


def prepare(folder: str) -> None:
    torch.compile = lambda *a, **_: a[0] if a and callable(a[0]) else (lambda function: function)
    sys.meta_path.insert(0, Finder(OUTSIDE, INSIDE))
    package: Any = types.ModuleType("sglang")
    package.__path__ = [f"{folder}/sglang"]
    package.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    sys.modules["sglang"] = package
    cudart = types.SimpleNamespace(
        cudaHostRegister=lambda *_: 0,
        cudaHostUnregister=lambda *_: 0,
        cudaGetErrorString=lambda *_: "",
    )
    torch.cuda.cudart = lambda: cudart
    torch.get_device_module = lambda *_: torch.cpu  # for a device "meta" too


def _module(name: str) -> Any:
    """A module of SGLang's cache; None where this release has none of that name."""
    try:
        return importlib.import_module(f"sglang.srt.mem_cache.{name}")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("sglang.srt.mem_cache"):
            raise
        return None


class Release:
    """One release's classes, whatever module they live in."""

    def __init__(self) -> None:
        # The newest pools take records of buffers, the others the device's pool itself.
        self.split = hasattr(_module("device_pool_info"), "MHABufferInfo")
        names = ("memory_pool_host", "pool_host.mha", "pool_host.mla", "pool_host.dsa")
        self.modules = [module for name in names if (module := _module(name))]
        self.recorder = Recorder()
        common = _module("pool_host.common")
        allocator = common.HostTensorAllocator if common else self.find("HostTensorAllocator")
        if allocator is not None:
            allocator.allocate = lambda _, dims, dtype, device: self.recorder.tensor(dims, dtype)
        else:
            torch.empty = self.recorder.empty

    def find(self, *names: str) -> Any:
        for name in names:
            for module in self.modules:
                if name in vars(module):
                    return vars(module)[name]
        return None


def build(release: Release, case: dict[str, Any]) -> dict[str, Any]:
    """The pools of one case, or the words of the exception that stopped them."""
    release.recorder.sizes_bytes.clear()
    available = case.get("available_bytes", 1 << 60)
    psutil.virtual_memory = lambda: types.SimpleNamespace(available=available, total=1 << 62)
    host_memory = sys.modules.get("sglang.srt.mem_cache.host_memory")
    if host_memory is not None:
        vars(host_memory)["_cgroup_memory_headroom"] = lambda *_: None
    try:
        if "linear_layers" in case:
            (pool,) = pools = _linear(case)
            sizes = list(release.recorder.sizes_bytes)
            return {"slots": pool.size, "slot_bytes": pool.size_per_token, "bytes": sum(sizes)}
        if case["window_layers"]:
            pools = _with_window(release, case)
        else:
            pools = (_split if release.split else _whole)(release, case)
    except (ValueError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "tokens": [pool.size for pool in pools],
        "pages": [_pages(pool) for pool in pools],
        "sized": [pool.size_per_token for pool in pools],
        "allocations_bytes": list(release.recorder.sizes_bytes),
    }


def _pages(pool: Any) -> int:
    for name in ("indexer_page_num", "page_num"):
        if hasattr(pool, name):
            return int(getattr(pool, name))
    return int(pool.size // pool.page_size)  # 0.5.2 keeps no page count


def _dtype(case: dict[str, Any]) -> Any:
    return torch.uint8 if case["item_bytes"] == 1 else torch.bfloat16


def _device_pool(case: dict[str, Any]) -> Any:
    """What the classes of releases to 0.5.22 read of the device's pool."""
    layers = case["layers"]
    dummy = [torch.zeros(1, dtype=torch.uint8) for _ in range(layers)]
    pointers = torch.zeros(1, dtype=torch.uint64)
    return types.SimpleNamespace(
        store_dtype=_dtype(case),
        dtype=_dtype(case),
        size=case["device_tokens"],
        page_size=case["page_tokens"],
        start_layer=0,
        end_layer=layers - 1,
        layer_num=layers,
        head_num=case["kv_heads"],
        row_dim=case["kv_heads"] * case["head_dim"],
        head_dim=case["head_dim"],
        v_head_dim=case["v_head_dim"],
        kv_lora_rank=case["kv_lora_rank"],
        qk_rope_head_dim=case["qk_rope_head_dim"],
        kv_cache_dim=case["kv_cache_dim"],
        index_head_dim=case["index_head_dim"],
        quant_block_size=128,
        **dict.fromkeys(("k_buffer", "v_buffer", "kv_buffer"), dummy),
        **dict.fromkeys(("k_data_ptrs", "v_data_ptrs", "data_ptrs"), pointers),
        index_k_with_scale_buffer=dummy,
        device="cpu",
        layer_shard_enabled=False,
        index_page_size=case["page_tokens"],
        skip_topk_layers=[layer in case["shared_index"] for layer in range(layers)],
        host_capacity_tokens=None,
    )


def _whole(release: Release, case: dict[str, Any]) -> list[Any]:
    device = _device_pool(case)
    sizes = (case["ratio"], case["size_gb"], case["page_tokens"], case["layout"])
    if case["kind"] == "mha":
        chosen = release.find("get_mha_host_pool_cls")
        pool = chosen(device) if chosen else release.find("MHATokenToKVPoolHost")
        return [pool(device, *sizes)]
    inside = release.find("NSATokenToKVPoolHost")
    if case["index_head_dim"] and inside:
        return [inside(device, *sizes)]
    options = {}
    if case["index_head_dim"]:
        options["override_kv_cache_dim"] = case["kv_cache_dim"]
    pools = [release.find("MLATokenToKVPoolHost")(device, *sizes, **options)]
    indexer = release.find("DSAIndexerPoolHost", "NSAIndexerPoolHost")
    if case["index_head_dim"] and indexer:
        declared = release.find("make_dsa_indexer_pool_decl")
        asked = (declared(device), pools[0]) if declared else (device, pools[0], case["layout"])
        pools.append(indexer(*asked))
    return pools


def _split(release: Release, case: dict[str, Any]) -> list[Any]:
    info: Any = importlib.import_module("sglang.srt.mem_cache.device_pool_info")
    mla = release.find("MLATokenToKVPoolHost")
    layers = case["layers"]
    sizes = (case["ratio"], case["size_gb"], case["page_tokens"], case["layout"])
    span: dict[str, Any] = {
        "device_capacity_tokens": case["device_tokens"],
        "start_layer": 0,
        "end_layer": layers - 1,
    }
    pointers = torch.zeros(1, dtype=torch.uint64)

    def mha_info(count: int) -> Any:
        row = tuple(torch.zeros(1, dtype=_dtype(case)) for _ in range(count))
        kinds = vars(info).get("KVBufferLayout")
        layout = {"layout": kinds.NHD} if kinds else {}
        buffers = info.KVBuffers(k=row, v=row, k_data_ptrs=pointers, v_data_ptrs=pointers, **layout)
        return info.MHABufferInfo(
            buffers=buffers,
            page_size=case["page_tokens"],
            head_num=case["kv_heads"],
            head_dim=case["head_dim"],
            v_head_dim=case["v_head_dim"],
            dtype=_dtype(case),
            device=torch.device("cpu"),
        )

    def mla_info(count: int) -> Any:
        return info.MLABufferInfo(
            buffers=tuple(torch.zeros((1, 1, 1), dtype=_dtype(case)) for _ in range(count)),
            data_ptrs=pointers,
            layer_indices=tuple(range(count)),
            device_layer_num=count,
            page_size=case["page_tokens"],
            kv_lora_rank=case["kv_lora_rank"],
            qk_rope_head_dim=case["qk_rope_head_dim"],
            kv_cache_dim=case["kv_cache_dim"],
            dtype=_dtype(case),
            device=torch.device("cpu"),
        )

    drafts = case["packed_drafts"]
    if case["kind"] == "mha":
        target = mha_info(layers)
        chosen = release.find("get_mha_host_pool_cls")(target)
        pools = [chosen(target, *sizes, **span, draft_buffer_infos=tuple([mha_info(1)] * drafts))]
        if case["draft_layers"]:
            draft = mha_info(case["draft_layers"])
            pools.append(
                chosen(
                    draft,
                    pools[0].size / case["device_tokens"],
                    0,
                    *sizes[2:],
                    **{**span, "end_layer": case["draft_layers"] - 1},
                    host_token_capacity=pools[0].size,
                )
            )
        return pools
    pools = [
        mla(
            mla_info(layers),
            *sizes,
            **span,
            target_layer_num=layers,
            override_kv_cache_dim=case["kv_cache_dim"],
            draft_buffer_infos=tuple([mla_info(1)] * drafts),
            dcp_size=case["dcp"],
        )
    ]
    if case["index_head_dim"]:
        dsa: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.dsa")
        device = _device_pool(case)
        pools.append(dsa.DSAIndexerPoolHost(dsa.make_dsa_indexer_pool_decl(device), pools[0]))
    return pools


def _with_window(release: Release, case: dict[str, Any]) -> list[Any]:
    """The pools of full and of sliding-window layers, with the release's own split of the size."""
    window = {
        **case,
        "layers": case["window_layers"],
        "kv_heads": case["window_heads"],
        "device_tokens": case["window_tokens"],
    }
    parts = [{**part, "window_layers": 0} for part in (case, window)]
    assembler = _module("hybrid_cache.hybrid_pool_assembler")
    split = vars(assembler).get("_split_hicache_size")
    if split is not None and case["size_gb"] > 0:
        sizes = split(case["size_gb"], tuple(_real_device_pools(case, window)))
        parts = [{**part, "size_gb": size} for part, size in zip(parts, sizes, strict=True)]
    one = _split if release.split else _whole
    return [pool for part in parts for pool in one(release, part)]


def _real_device_pools(case: dict[str, Any], window: dict[str, Any]) -> list[Any]:
    """SGLang's own SWAKVPool on a device without memory: what its two pools say they take."""
    pools: Any = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
    made = pools.SWAKVPool(
        size=case["device_tokens"],
        size_swa=window["device_tokens"],
        page_size=case["page_tokens"],
        dtype=_dtype(case),
        head_num=case["kv_heads"],
        head_dim=case["head_dim"],
        swa_head_num=window["kv_heads"],
        swa_head_dim=case["head_dim"],
        swa_v_head_dim=case["v_head_dim"],
        v_head_dim=case["v_head_dim"],
        full_attention_layer_ids=list(range(case["layers"])),
        swa_attention_layer_ids=list(range(case["layers"], case["layers"] + window["layers"])),
        device="meta",
    )
    return [made.full_kv_pool, made.swa_kv_pool]


def _linear(case: dict[str, Any]) -> list[Any]:
    """The host pool of linear-attention states, whose shape SGLang's own record makes."""
    path = f"{sys.modules['sglang'].__path__[0]}/srt/configs/mamba_utils.py"
    spec: Any = importlib.util.spec_from_file_location("real_mamba_utils", path)
    utils = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = utils
    spec.loader.exec_module(utils)
    vars(utils)["divide"] = operator.floordiv  # of distributed, which is a stand-in
    shape = utils.Mamba2StateShape.create(
        tp_world_size=case["tp"],
        intermediate_size=case["value_dim"] * case["value_heads"],
        n_groups=case["key_heads"],
        num_heads=case["value_heads"],
        head_dim=case["value_dim"],
        state_size=case["key_dim"],
        conv_kernel=case["kernel"],
    )
    rows = (case["linear_layers"], case["slots"] + 1)
    item = torch.float32 if case["temporal_item_bytes"] == 4 else torch.bfloat16
    conv = [torch.zeros(1, dtype=torch.bfloat16).expand(rows + tuple(each)) for each in shape.conv]
    temporal = torch.zeros(1, dtype=item).expand(rows + tuple(shape.temporal))
    made = vars(_module("pool_host.mamba") or _module("memory_pool_host"))["MambaPoolHost"]
    given = (case["ratio"], case["size_gb"])
    info = getattr(_module("device_pool_info"), "MambaStateBufferInfo", None)
    if info is not None:
        of = info(temporal=temporal, conv=tuple(conv))
        return [made(of, *given, device_capacity=case["slots"], layout=case["layout"])]
    cache = types.SimpleNamespace(conv=conv, temporal=temporal)
    device = types.SimpleNamespace(
        size=case["slots"], num_mamba_layers=rows[0], device="cpu", mamba_cache=cache
    )
    return [made(device, *given, layout=case["layout"])]


def main() -> None:
    prepare(sys.argv[1])
    cases = json.load(sys.stdin)
    release = Release()
    json.dump({case["id"]: build(release, case) for case in cases}, sys.stdout)


if __name__ == "__main__":
    main()
