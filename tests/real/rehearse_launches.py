"""Launches to rehearse, as users write them, and the pages of an answer, read from its JSON.

What the launches start is a store, a server, or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RDMA, TCP = "rdma", "tcp"
HUGE = "export MC_STORE_USE_HUGEPAGE=1\n"
MASTER = "10.0.0.1:50051"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"  # K and V of each layer apart
DEEPSEEK = "deepseek-ai/DeepSeek-V3"  # one latent row


def exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}='{text}'\n" for name, text in variables.items())


def store(
    segment: str = "80mb", local: str = "16mb", protocol: str = RDMA, huge: str = HUGE, **more: str
) -> str:
    """A script that starts a store service."""
    variables = {
        "MOONCAKE_PROTOCOL": protocol,
        "MOONCAKE_MASTER": MASTER,
        "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
        "MOONCAKE_LOCAL_HOSTNAME": "here",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": segment,
        "MOONCAKE_LOCAL_BUFFER_SIZE": local,
        **more,
    }
    service = "exec python3 -m mooncake.mooncake_store_service --port=5081\n"
    return f"{huge}{exports(variables)}{service}"


def server(
    hicache: int = 10,
    segment: str = "8gb",
    tp: int = 1,
    protocol: str = RDMA,
    huge: str = HUGE,
    flags: str = "--hicache-storage-backend mooncake",
    model: str = LLAMA,
    **more: str,
) -> str:
    """A script that starts an SGLang server; its sizes are for a scale of 100 or more."""
    variables = {
        "MOONCAKE_PROTOCOL": protocol,
        "MOONCAKE_MASTER": MASTER,
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": segment,
        **more,
    }
    return (
        f"{huge}{exports(variables)}"
        f"python3 -m sglang.launch_server --model-path {model} --tp {tp} "
        f"--enable-hierarchical-cache --hicache-size {hicache} --page-size 64 {flags}\n"
    )


def standalone(
    hicache: int,
    segment: str,
    local: str,
    tp: int = 1,
    protocol: str = RDMA,
    model: str = DEEPSEEK,
    **more: str,
) -> str:
    """Ranks without segments of their own, and the ``mooncake_client`` that has them."""
    extra = '\'{"standalone_storage": true, "client_server_address": "127.0.0.1:5052"}\''
    flags = f"--hicache-storage-backend mooncake --hicache-storage-backend-extra-config {extra} &"
    ranks = server(hicache, "8gb", tp, protocol, flags=flags, model=model, **more)
    return (
        f"{ranks}mooncake_client --global_segment_size={segment} --local_buffer_size={local} "
        f"--protocol={protocol} --master_server_address={MASTER}\n"
    )


@dataclass(frozen=True)
class Pages:
    """total: by page size, over all nodes. nodes: of each node, over all sizes."""

    total: Mapping[int, int]
    nodes: Mapping[int, int]

    def on(self, node: int) -> int:
        return self.nodes.get(node, 0)


def _pages(rows: list[dict[str, Any]] | None) -> Pages | None:
    if rows is None:
        return None
    total = {row["page_size_bytes"]: row["pages"] for row in rows if row["numa_node"] is None}
    nodes: dict[int, int] = {}
    for row in rows:
        if row["numa_node"] is not None:
            nodes[row["numa_node"]] = nodes.get(row["numa_node"], 0) + row["pages"]
    return Pages(total, nodes)


def measured_pages(step: Mapping[str, Any]) -> Pages | None:
    """None where the process died."""
    return _pages(step["measured"]["pages"])


def predicted_pages(step: Mapping[str, Any]) -> Pages:
    found = _pages(step["predicted"]["pages"])
    assert found is not None, step
    return found


def all_pages(answer: Mapping[str, Any]) -> Mapping[int, int]:
    """What was in use at the end, by page size."""
    found = _pages(answer["pages"])
    return {} if found is None else found.total
