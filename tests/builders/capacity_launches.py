"""Launches whose capacity is asked about, and the answer to them."""

from pathlib import Path

from checks.framework.unknown import Unknown
from preflight.cache_sizing.capacity.answer import CapacityAnswer, CapacityRequest, ServerCapacity
from preflight.cache_sizing.capacity.deployment import Bounds, Cluster, Tier
from preflight.cache_sizing.capacity.rounds import capacity_of
from preflight.cache_sizing.capacity.workload import WorkloadOptions
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.hosts import GIB, Host

SERVER = "python3 -m sglang.launch_server --model-path {model} --tp {tp} --page-size 64"
HICACHE = f"{SERVER} --enable-hierarchical-cache"
STORED = (
    "MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE={segment} "
    f"{HICACHE} --hicache-size {{size}} --hicache-storage-backend mooncake"
)


def answer_to(
    folder: Path,
    script: str,
    *,
    gpu_bytes: int | None = None,
    wanted: WorkloadOptions | None = None,
    mooncake: str = "0.3.14",
    sglang: str = "0.5.23",
    nodes_in_cluster: int | None = None,
    other_bytes: int = 0,
    watermark: float | None = None,
    model_config: str | None = None,
    new_tokens_per_second: float | None = None,
) -> CapacityAnswer:
    """What ``capacity`` says of ``script`` on a large host without anything of note."""
    place = folder / "launch.sh"
    place.write_text(f"{script}\n")
    host = folder / "host"
    if not host.exists():
        Host(memory_bytes=4096 * GIB).write(host)
    words = LaunchWords(
        (str(place),),
        mooncake_version=mooncake,
        sglang_version=sglang,
        gpu_bytes=gpu_bytes,
        model_config=model_config,
    )
    asked = CapacityRequest(
        Cluster(nodes_in_cluster, other_bytes),
        wanted or WorkloadOptions(),
        watermark,
        new_tokens_per_second,
    )
    found = capacity_of(words, str(host), 60.0, asked)
    assert not isinstance(found, Unknown)
    return found


def server_of(folder: Path, script: str, **options: object) -> ServerCapacity:
    """The same of a script with one server."""
    (server,) = answer_to(folder, script, **options).servers  # type: ignore[arg-type]
    return server


def tier_of(server: ServerCapacity, name: str) -> Tier:
    return next(tier for tier in server.capacity.tiers if tier.name == name)


def tokens_of(server: ServerCapacity, name: str) -> Bounds:
    """A tier's tokens, which are known."""
    tokens = tier_of(server, name).tokens
    assert isinstance(tokens, Bounds), tokens
    return tokens
