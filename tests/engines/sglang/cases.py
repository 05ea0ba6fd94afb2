"""The geometries on which the predicted host pools are held against SGLang's real classes."""

from __future__ import annotations

from typing import NamedTuple

from checks.releases.sglang import sglang_release
from preflight.engines.sglang.host_pool_records import DEFAULT_SWA_RATIO, PoolRequest
from preflight.engines.sglang.model_geometry import AttentionKind, Heads, LayerKind, ModelGeometry

# The newest release, one of each kind of indexer and allocator before it, and two of the oldest.
VERSIONS = ("0.5.23", "0.5.16", "0.5.11", "0.5.10", "0.5.9", "0.5.4", "0.5.2")


class Case(NamedTuple):
    """One rank's geometry, as the classes see it: heads of one rank, layers of one stage."""

    id: str
    kind: str = "mha"
    layers: int = 2
    kv_heads: int = 1
    head_dim: int = 0
    v_head_dim: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    index_head_dim: int = 0
    shared_index: tuple[int, ...] = ()
    item_bytes: int = 2
    page_tokens: int = 64
    layout: str = "page_first"
    size_gb: int = 0
    ratio: float = 2.0
    device_tokens: int = 1024
    packed_drafts: int = 0
    draft_layers: int = 0
    window_layers: int = 0  # behind the full ones, sliding-window attention
    window_heads: int = 0
    dcp: int = 1
    since: str = "0.5.2"
    until: str = "9.0.0"
    available_bytes: int = 1 << 60

    def runs_on(self, version: str) -> bool:
        first, last = sglang_release(self.since).first, sglang_release(self.until).first
        return first <= sglang_release(version).first <= last

    def request(self, version: str) -> PoolRequest:
        """The same rank, as the prediction is asked for it."""
        heads = Heads(self.kv_heads, self.head_dim, self.v_head_dim)
        indexed = tuple(
            layer
            for layer in range(self.layers)
            if self.index_head_dim and layer not in self.shared_index
        )
        geometry = ModelGeometry(
            self.id,
            AttentionKind(self.kind),
            (LayerKind.FULL,) * self.layers + (LayerKind.SLIDING,) * self.window_layers,
            2,
            heads if self.kind == "mha" else Heads(1, 0, 0),
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
            index_layers=indexed,
            index_head_dim=self.index_head_dim,
            sliding=heads._replace(kv_heads=self.window_heads) if self.window_layers else None,
        )
        draft = geometry._replace(layers=(LayerKind.FULL,) * self.draft_layers, index_layers=())
        return PoolRequest(
            geometry,
            sglang_release(version),
            self.page_tokens,
            self.layout,
            size_gb=self.size_gb,
            ratio=self.ratio,
            device_tokens=self.device_tokens,
            dcp=self.dcp,
            kv_item_bytes=self.item_bytes,
            packed_drafts=self.packed_drafts,
            draft=draft if self.draft_layers else None,
        )

    def as_json(self) -> dict[str, object]:
        """The runner's input; ``kv_cache_dim`` is the device pool's row, given, not predicted."""
        packed = self.item_bytes == 1 and self.index_head_dim
        row = 656 if packed else self.kv_lora_rank + self.qk_rope_head_dim
        # What the GPU keeps of the window is given too: the share, in whole pages.
        window = int(self.device_tokens * DEFAULT_SWA_RATIO) // self.page_tokens * self.page_tokens
        return {**self._asdict(), "kv_cache_dim": row, "window_tokens": window}


def mha(name: str, layers: int, kv_heads: int, head_dim: int = 128, **rest: object) -> Case:
    return Case(name, "mha", layers, kv_heads, head_dim, head_dim)._replace(**rest)  # type: ignore[arg-type]


def mla(name: str, layers: int = 61, **rest: object) -> Case:
    return Case(name, "mla", layers, kv_lora_rank=512, qk_rope_head_dim=64)._replace(**rest)  # type: ignore[arg-type]


CASES = (
    # The worked examples of real launches, at their full size.
    mha("qwen3-14b tp2 30 GB", 40, 4, size_gb=30),
    mha("qwen3-14b tp2 30 GB page 1", 40, 4, size_gb=30, page_tokens=1),
    mha("qwen3-14b tp2 30 GB fp8", 40, 4, size_gb=30, item_bytes=1),
    mha("qwen3-235b tp8 30 GB", 94, 1, size_gb=30),
    mha("qwen3-235b tp8 30 GB page 1", 94, 1, size_gb=30, page_tokens=1),
    mha("qwen3-8b tp1 ratio 2", 36, 8, device_tokens=99_968),
    mha("qwen3-8b tp1 ratio 2 page 1", 36, 8, device_tokens=100_000, page_tokens=1),
    mha("llama-3.1-8b tp1 50 GB", 32, 8, size_gb=50, page_tokens=16),
    mha("llama-3.1-70b tp4 120 GB", 80, 2, size_gb=120, page_tokens=32),
    mha("glm-4.5 tp8 64 GB", 92, 1, size_gb=64),
    mla("deepseek-r1 100 GB", size_gb=100),
    mla("deepseek-r1 100 GB page 1", size_gb=100, page_tokens=1),
    mla("deepseek-r1 100 GB fp8", size_gb=100, item_bytes=1),
    mla("deepseek-r1 ratio 1.5", ratio=1.5, device_tokens=700_032),
    # The other layouts: none changes a byte.
    mha("mha layer_first", 40, 4, size_gb=30, layout="layer_first"),
    mha("mha page_first_direct", 40, 4, size_gb=30, layout="page_first_direct", since="0.5.3"),
    mha("mha page_head", 40, 4, size_gb=30, layout="page_head", since="0.5.5.post3"),
    mla("mla layer_first", size_gb=100, layout="layer_first"),
    mla("mla page_first_direct", size_gb=100, layout="page_first_direct", since="0.5.3"),
    # Sparse attention: the index keys inside the size, then on top of it.
    mla("v3.2 100 GB", size_gb=100, index_head_dim=128, since="0.5.9"),
    mla("v3.2 100 GB fp8", size_gb=100, index_head_dim=128, item_bytes=1, since="0.5.9"),
    mla("v3.2 layer_first", size_gb=20, index_head_dim=128, layout="layer_first", since="0.5.9"),
    mla("v3.2 page 1", size_gb=20, index_head_dim=128, page_tokens=1, since="0.5.9"),
    mla("v3.2 ratio", index_head_dim=128, device_tokens=64_000, since="0.5.9"),
    mla(
        "shared index",
        8,
        size_gb=2,
        index_head_dim=128,
        shared_index=(1, 2, 3, 5, 6, 7),
        since="0.5.9",
    ),
    # K and V of different width: two tensors.
    *(
        mha(name, 48, 4, 192, v_head_dim=128, size_gb=20, layout=layout, since="0.5.14")
        for name, layout in (
            ("asymmetric", "page_first"),
            ("asymmetric page_first_direct", "page_first_direct"),
            ("asymmetric layer_first", "layer_first"),
        )
    ),
    # Drafts.
    mha("mha packed", 92, 1, size_gb=64, packed_drafts=1, since="0.5.23"),
    mla("mla packed", size_gb=100, packed_drafts=1, since="0.5.23"),
    mha("mha draft", 40, 4, size_gb=30, draft_layers=1, since="0.5.23"),
    mla("mla dcp", size_gb=100, dcp=4, page_tokens=256, since="0.5.23"),
    # Small and odd.
    mha("one page", 2, 1, ratio=0.001, device_tokens=1024, since="0.5.15"),
    mha("ratio 0", 2, 1, ratio=0.0, since="0.5.15"),
    mha("odd ratio", 3, 2, 96, ratio=2.37, device_tokens=1_234_560, page_tokens=16),
    mha("head 80", 24, 5, 80, size_gb=7, page_tokens=128),
    mha("smaller than the device", 2, 1, ratio=0.5, until="0.5.14"),
    # The gate's words.
    mha("no memory", 40, 4, size_gb=30, available_bytes=20 * 2**30),
    # A row so narrow that the index keys outweigh it, so that the indexer's own gate speaks.
    mla(
        "no memory for the indexer",
        size_gb=20,
        index_head_dim=128,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        available_bytes=21 * 10**9 + 10 * 2**30,
        since="0.5.11",
    ),
)
