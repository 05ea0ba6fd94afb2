"""Builds SGLang's real MooncakeDirectLinker for one rank, and prints what it took, as JSON.

    python linker_runner.py FOLDER < order.json      FOLDER holds one release's unpacked wheel

Started under the launch's environment, with Mooncake's wheel on PYTHONPATH. The linker, its
MooncakeStore and SGLang's reading of variables are those of the wheel; torch and the pool on the
GPU are stand-ins, and a page of plain memory is what the linker registers.
"""

import ctypes
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import mmap
import os
import sys
import types

STORE = "sglang.srt.mem_cache.storage.mooncake_store"
OWN = (
    "sglang.srt.environ",
    "sglang.srt.mem_cache.hicache_storage",
    f"{STORE}.mooncake_store",
    f"{STORE}.mooncake_direct_linker",
)


class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__new__": lambda cls, *_, **__: object.__new__(cls)})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in OWN:
            file = os.path.join(sys.argv[1], *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, file)
        if name == "sglang.srt.distributed.parallel_state":
            raise ImportError("no transfer engine to share")
        if name.split(".")[0] in ("sglang", "torch", "requests"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        module.__path__ = []


class Pool:
    """The pool on the GPU: one buffer that the linker registers."""

    rank_replicated, num_layers, entry_map = False, 1, {}
    area = mmap.mmap(-1, 4096)

    def get_hybrid_pool_buffer(self):
        return [self]

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.area))

    def nbytes(self):
        return 4096


def linked(order):
    torch = importlib.import_module("torch")
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda group: order["tp_rank"],
        get_world_size=lambda group: order["tp_size"],
    )
    module = importlib.import_module(f"{STORE}.mooncake_direct_linker")
    pool = Pool()
    pool.entry_map = {"kv": pool}
    module.resolve_hybrid_device_pool_group = lambda **_: pool
    module.device_module = types.SimpleNamespace()
    module.get_parallel = lambda: types.SimpleNamespace(tp_size=order["tp_size"])
    module.get_model = lambda: types.SimpleNamespace(model_path="Qwen/Qwen3-14B")
    module.LayerWiseLoadCounter = lambda *_: None
    linker = module.MooncakeDirectLinker
    linker.__abstractmethods__ = frozenset()
    params = types.SimpleNamespace(
        page_size=64,
        token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: None),
        attn_tp_cache_group="group",
        tp_cache_group="group",
        pp_rank=0,
        pp_size=order["pp_size"],
        attn_cp_rank=0,
        attn_cp_size=1,
    )
    arguments = types.SimpleNamespace(enable_linker_mla_dedup=False)
    given = {"extra_config": order["config"]}
    if "extra_config" not in inspect.signature(linker).parameters:  # up to 0.5.22
        given = {}
        memory = types.SimpleNamespace(hicache_storage_backend_extra_config=None)
        module.get_memory = lambda: memory
        parse = {"parse_storage_backend_extra_config": lambda _: (order["config"],)}
        module.HybridCacheController = types.SimpleNamespace(**parse)
    return linker(arguments, params, components=set(), **given)


def mapped_pages():
    """Count the 2 MiB pages that this process alone has mapped, whatever others take meanwhile."""
    pages = size = 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith("Size:"):
                size = int(line.split()[1])
            elif line.startswith("KernelPageSize:") and line.split()[1] == "2048":
                pages += size // 2048
    return pages


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    kept, said = None, "ok"
    try:
        kept = linked(json.loads(sys.stdin.readline()))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps({"said": said, "pages": mapped_pages()}))
    sys.stdout.flush()
    sys.stdin.read()  # it holds its pages until its input ends
    os._exit(0)
