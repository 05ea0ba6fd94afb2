"""The bytes of a row of sparse attention are those that SGLang's own functions return.

Over every dtype, kernel of either phase, GPU, role and HiSparse. The functions stand in the files
of ``SOURCES`` in each of the releases; what they read of machine and settings is a stand-in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sglang_wheels import unpacked

from checks.framework.unknown import Unknown
from checks.releases.sglang import parse_version, sglang_release
from preflight.engines.sglang.model import WellKnownModel, well_known_model
from preflight.engines.sglang.model_geometry import ModelGeometry, geometry_from_config
from preflight.engines.sglang.pool_request import GpuKind, Hardware, SizedServer, _cache_element
from tests.engines.sglang.source_functions import functions

VERSIONS = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
# What decides a row: the dtype, the kernels, the row.
SOURCES = {
    "_hisparse_default_backend": "arg_groups/hisparse_hook.py",
    "_dsa_kv_cache_dtype_default": "arg_groups/overrides.py",
    "_dsa_split_backend_resolution": "arg_groups/overrides.py",
    "calculate_mla_kv_cache_dim": "mem_cache/kv_cache_configurator.py",
}
# Refuses kernels that do not go together; its name changed in 0.5.20.
CHECKS = ("_check_dsa_backend_constraints", "_check_tilelang_dsa_fp8_kv")
DTYPES = ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
NVIDIA = (None, "flashmla_sparse", "flashmla_kv", "fa3", "tilelang", "trtllm")
AMD = (None, "tilelang", "aiter", "triton")
TRITON_SINCE = "0.5.20"  # the choices of --dsa-prefill-backend
MAJOR = {GpuKind.BEFORE_BLACKWELL: 9, GpuKind.BLACKWELL: 10, GpuKind.AMD: 9}
ROLES = ("null", "prefill", "decode")
LATENT, ROTARY = 512, 64


class Case(SimpleNamespace):
    """What a server is given: also the view that SGLang's functions read it by."""

    dtype: str
    prefill: str | None
    decode: str | None
    gpu: GpuKind
    role: str
    hisparse: bool


def cases(version: str) -> Iterator[Case]:
    for gpu in GpuKind:
        kernels: tuple[str | None, ...] = AMD if gpu is GpuKind.AMD else NVIDIA
        if parse_version(version) < parse_version(TRITON_SINCE):
            kernels = tuple(kernel for kernel in kernels if kernel != "triton")
        for dtype, prefill, decode, role, hisparse in product(
            DTYPES, kernels, kernels, ROLES, (False, True)
        ):
            # HiSparse's own check allows few kernels: those that it takes by itself are compared.
            if not hisparse or (prefill is None and decode is None):
                yield Case(
                    dtype=dtype, prefill=prefill, decode=decode, gpu=gpu, role=role,
                    hisparse=hisparse,
                )  # fmt: skip


def pool_constants(folder: Path) -> dict[str, str]:
    """The fields of DSATokenToKVPool that say how an fp8 row is scaled, as they are written."""
    tree = ast.parse((folder / "mem_cache/memory_pool.py").read_text())
    (pool,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "DSATokenToKVPool"
    )
    return {
        target.id: ast.unparse(node.value)
        for node in pool.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


class Release:
    """SGLang's functions of one release, called for one case after the other."""

    def __init__(self, version: str) -> None:
        folder = unpacked(version) / "sglang" / "srt"
        self.case = next(cases(version))
        constants = pool_constants(folder)
        assert constants["rope_storage_dtype"].startswith("torch.bfloat16")
        cuda = SimpleNamespace(get_device_capability=lambda: (MAJOR[self.case.gpu], 0))
        self.torch = SimpleNamespace(
            cuda=cuda, float8_e4m3fn="fp8_e4m3", bfloat16=SimpleNamespace(itemsize=2)
        )
        self.scope: dict[str, Any] = {
            "torch": self.torch,
            "logger": SimpleNamespace(warning=lambda *_: None, info=lambda *_: None),
            "is_deepseek_dsa": lambda _: True,
            "_DEEPSEEK_FAMILY_ARCHS": {"GlmMoeDsaForCausalLM"},
            "is_npu": lambda: False,
            "is_xpu": lambda: False,
            "is_hip": self.hip,
            "get_platform": lambda: SimpleNamespace(is_npu=False, is_xpu=False, is_hip=self.hip()),
            "model_config_of": lambda view: view.get_model_config(),
            "DSATokenToKVPool": SimpleNamespace(
                quant_block_size=int(constants["quant_block_size"]),
                rope_storage_dtype=self.torch.bfloat16,
            ),
        }
        for name, file in SOURCES.items():
            # In 0.5.18 one file has _is_hip as a function, another as its answer.
            scope = dict(self.scope)
            if name != "calculate_mla_kv_cache_dim":
                scope["_is_hip"] = self.hip
            self.scope[name] = functions(folder / file, (name, *CHECKS), **scope)[name]

    def hip(self) -> bool:
        return self.case.gpu is GpuKind.AMD

    def row_bytes(self, case: Case) -> int | None:
        """The bytes of one row; None where the release refuses the settings."""
        self.case = case
        architectures = SimpleNamespace(architectures=["GlmMoeDsaForCausalLM"])
        model = SimpleNamespace(
            hf_config=architectures, kv_lora_rank=LATENT, qk_rope_head_dim=ROTARY
        )
        view = SimpleNamespace(
            kv_cache_dtype=case.dtype,
            dsa_prefill_backend=case.prefill,
            dsa_decode_backend=case.decode,
            dsa_topk_backend=None,
            enable_hisparse=case.hisparse,
            dcp_size=1,
            disaggregation_mode=case.role,
            get_model_config=lambda: model,
        )
        try:
            for step in ("_dsa_kv_cache_dtype_default", "_dsa_split_backend_resolution"):
                vars(view).update(self.scope[step](view))
        except (AssertionError, ValueError):
            return None
        calculate = self.scope["calculate_mla_kv_cache_dim"]
        calculate.__globals__.update(
            _is_hip=self.hip(),
            get_exec=lambda: SimpleNamespace(kernel=view),
            get_disagg=lambda: view,
        )
        wanted = {"model_config": model, "kv_cache_dtype": view.kv_cache_dtype}
        if "server_args" in arguments_of(calculate):
            wanted["server_args"] = view
        elements = int(calculate(**wanted))
        return elements if view.kv_cache_dtype.startswith("fp8") else 2 * elements


def predicted(case: Case, version: str, geometry: ModelGeometry) -> int:
    values = {
        "dsa_prefill_backend": case.prefill,
        "dsa_decode_backend": case.decode,
        "enable_hisparse": case.hisparse,
    }
    server = SimpleNamespace(mode=case.role, value=values.get)
    hardware = Hardware(geometry, Unknown("not read"), None, gpu=case.gpu)
    sized = SizedServer(cast(Any, server), cast(Any, None), hardware, sglang_release(version))
    item_bytes, raw = _cache_element(sized, case.dtype)
    if (item_bytes or geometry.dtype_bytes) == 2:
        return 2 * (LATENT + ROTARY)
    return LATENT + ROTARY if raw else LATENT + LATENT // 128 * 4 + 2 * ROTARY


@pytest.mark.sglang
@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_is_that_of_sglangs_own_functions(version: str) -> None:
    release = Release(version)
    model = well_known_model("zai-org/GLM-5.2")
    assert isinstance(model, WellKnownModel)
    compared, wrong = 0, []
    for case in cases(version):
        real = release.row_bytes(case)
        if case.dtype == "fp8_e5m2":  # refused, as test_sparse_rows.py says
            assert real is None
        if real is None:
            continue
        compared += 1
        if (ours := predicted(case, version, model.geometry)) != real:
            wrong.append((vars(case), real, ours))
    assert compared > 500
    assert not wrong, (len(wrong), wrong[:20])


@pytest.mark.sglang
@pytest.mark.parametrize("version", VERSIONS[2:])  # before, indexer_types was not read
def test_layers_with_an_index_are_those_of_sglangs_own_function(version: str) -> None:
    """Of every release that reads indexer_types, over the fields that share an index."""
    name, file = "dsa_layer_skips_topk", unpacked(version) / "sglang/srt/configs/model_config.py"
    skips = functions(file, (name,), is_deepseek_dsa=lambda _: True)[name]
    compared = 0
    for freq, offset, pattern, types in product(
        (None, 1, 2, 4, 7),
        (None, 1, 3, 5),
        (None, "FSFS", "S" * 4, "F" + "S" * 11),
        (None, ["full", "shared", "shared"], ["full"] * 12),
    ):
        fields = {
            "index_topk_freq": freq,
            "index_skip_topk_offset": offset,
            "index_topk_pattern": pattern,
            "indexer_types": types,
        }
        config = {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "num_hidden_layers": 12,
            "kv_lora_rank": LATENT,
            "qk_rope_head_dim": ROTARY,
            "index_topk": 2048,
            "index_head_dim": 128,
            **fields,
        }
        geometry = geometry_from_config(config, "model")
        assert isinstance(geometry, ModelGeometry)
        own = tuple(layer for layer in range(12) if not skips(SimpleNamespace(**fields), layer))
        assert geometry.index_layers == own, fields
        compared += 1
    assert compared == 5 * 4 * 4 * 3


@pytest.mark.sglang
@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_of_dense_latent_attention_is_its_width_whatever_reads_it(version: str) -> None:
    release = Release(version)
    calculate = release.scope["calculate_mla_kv_cache_dim"]
    calculate.__globals__["is_deepseek_dsa"] = lambda _: False
    model = SimpleNamespace(hf_config=None, kv_lora_rank=LATENT, qk_rope_head_dim=ROTARY)
    wanted = {"model_config": model, "kv_cache_dtype": "fp8_e4m3", "server_args": None}
    taken = {name: value for name, value in wanted.items() if name in arguments_of(calculate)}
    assert calculate(**taken) == LATENT + ROTARY


def arguments_of(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
