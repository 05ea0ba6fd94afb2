"""Rules that take the model and the versions to see."""

from __future__ import annotations

from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import sglang_release
from preflight.engines.sglang.model import well_known_model
from preflight.engines.sglang.model_geometry import geometry_from_config
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.rules import Versions
from tests.builders.launch_text import HICACHE, understood
from tests.builders.rule_examples import GOOD, Line, env
from tests.tables import each_row


class MemoryExample(NamedTuple):
    id: str
    says: str
    wrong: Line = ""
    right: Line = ""
    sglang: tuple[str, str] = ("0.5.23", "0.5.23")
    mooncake: tuple[str, str] = ("0.3.14", "0.3.14")

    def of(self, wrong: Line, right: Line, **more: Any) -> MemoryExample:
        return self._replace(wrong=wrong, right=right, **more)


UNEQUAL = geometry_from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "hidden_size": 1536,
        "head_dim": 192,
        "v_head_dim": 128,
        "torch_dtype": "bfloat16",
    },
    "unequal",
)
V32 = f"{HICACHE} --model-path deepseek-ai/DeepSeek-V3.2 --hicache-size 100"
R1 = f"{HICACHE} --model-path deepseek-ai/DeepSeek-R1 --hicache-size 100"
OFFLOAD = env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="/data")
MHA = "Qwen/Qwen3-8B"


def _with_store(model: str, **more: str) -> Line:
    line, environment = env(**more)
    return f"{line} --model-path {model}", environment


HALVES = _with_store(MHA, MC_STORE_USE_HUGEPAGE="1")
ALONE = _with_store(MHA, MOONCAKE_STANDALONE_STORAGE="1")
EXAMPLES = [
    MemoryExample("indexer-on-top", "index keys of 61 layers come on top", V32, R1),
    MemoryExample("draft-on-top", "EAGLE", f"{R1} --speculative-algorithm EAGLE", R1),
    MemoryExample("offload-folder-shared", "8 ranks offload to /data").of(
        OFFLOAD, OFFLOAD, sglang=("0.5.20", "0.5.23")
    ),
    MemoryExample("gate-blind-to-hugepages", "puts the L2 pool on huge pages", GOOD, env()),
    MemoryExample(
        "mooncake-too-old", "older than 0.3.8.post1", GOOD, GOOD, mooncake=("0.3.8", "0.3.8.post1")
    ),
    MemoryExample(
        "tenant-unsupported",
        "tenant_id is 'blue' (MOONCAKE_TENANT_ID at launch.sh:1), and Mooncake is older",
    ).of(
        env(MOONCAKE_TENANT_ID="blue"),
        env(MOONCAKE_TENANT_ID=" default "),
        mooncake=("0.3.11.post1", "0.3.11.post1"),
    ),
    MemoryExample("tenant-unsupported", "older than 0.3.12").of(
        env(MOONCAKE_TENANT_ID="blue"),
        env(MOONCAKE_TENANT_ID="blue"),
        mooncake=("0.3.11", "0.3.12"),
    ),
    MemoryExample(
        "l2-halves-overlap",
        "Qwen3-8B: K is registered with the whole pool, V is refused: RuntimeError: Failed to "
        "register buffer to Mooncake Store, error code: -600",
    ).of(HALVES, HALVES, mooncake=("0.3.14", "0.3.13.post1")),
    MemoryExample(
        "l2-halves-overlap", "Transfer Engine does not support overlapped memory region"
    ).of(HALVES, HALVES, sglang=("0.5.21", "0.5.20")),
    MemoryExample("l2-halves-overlap", "Qwen3-8B").of(
        _with_store(MHA, MC_STORE_USE_HUGEPAGE="0"),
        _with_store("deepseek-ai/DeepSeek-R1", MC_STORE_USE_HUGEPAGE="1"),
    ),
    MemoryExample(
        "l2-halves-overlap",
        "Qwen3-8B",
        HALVES,
        _with_store("unequal", MC_STORE_USE_HUGEPAGE="1"),  # a tensor each for K and V
    ),
    MemoryExample("l2-halves-overlap", "Qwen3-8B").of(
        HALVES, _with_store(MHA, MC_STORE_USE_HUGEPAGE="1", MOONCAKE_STANDALONE_STORAGE="1")
    ),
    MemoryExample(
        "standalone-breaks-mha",
        "Qwen3-8B, standalone_storage is on (MOONCAKE_STANDALONE_STORAGE at launch.sh:1): K is "
        "refused: RuntimeError: Failed to register buffer to Mooncake Store, error code: -1",
    ).of(ALONE, ALONE, sglang=("0.5.21", "0.5.20")),
    MemoryExample("standalone-breaks-mha", "Invalid buffer address or size for registration").of(
        _with_store(MHA, MOONCAKE_STANDALONE_STORAGE="1", MC_STORE_USE_HUGEPAGE="1"),
        _with_store("deepseek-ai/DeepSeek-R1", MOONCAKE_STANDALONE_STORAGE="1"),
        mooncake=("0.3.8.post1", "0.3.8.post1"),
    ),
]


BIG = f"{HICACHE} --model-path Qwen/Qwen3-8B --hicache-size"
CHUNK = "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB"


def _stored(size: int, **more: str) -> Line:
    line, environment = env(**more)
    return f"{line} --model-path {MHA} --hicache-size {size}", environment


RELAXED = "MC_IB_PCI_RELAXED_ORDERING"
EXAMPLES += [
    MemoryExample("pin-result-ignored", "whose result nobody reads").of(
        f"{BIG} 100", f"{BIG} 100", sglang=("0.5.12.post1", "0.5.13")
    ),
    MemoryExample("pin-result-ignored", "whose result nobody reads").of(
        f"{BIG} 100", f"{BIG} 100", sglang=("0.5.4.post2", "0.5.4.post1")
    ),
    # 549 GB are 511.3 GiB, 550 GB 512.2.
    MemoryExample("pinned-in-one-call", "--hicache-size 550: 512.23 GiB in one call").of(
        f"{BIG} 550", f"{BIG} 549", sglang=("0.5.18", "0.5.18")
    ),
    MemoryExample(
        "pinned-in-one-call", "in one call", f"{BIG} 550", f"{BIG} 550", sglang=("0.5.18", "0.5.19")
    ),
    MemoryExample("pinned-in-one-call", "in one call").of(
        f"{BIG} 600 --hicache-mem-layout layer_first", f"{BIG} 600 --hicache-mem-layout page_first"
    ),
    MemoryExample("pinned-in-one-call", "512.00 GiB in one call").of(
        (f"{BIG} 600", {CHUNK: "512"}),
        (f"{BIG} 600", {CHUNK: "many"}),  # the default is taken
    ),
    MemoryExample("populate-takes-long", "about 65 s", _stored(200), _stored(100)),
    MemoryExample("populate-takes-long", "about 65 s", _stored(200), f"{BIG} 200"),
    MemoryExample("populate-takes-long", "about 60 s", _stored(186), _stored(185)),
    MemoryExample(
        "relaxed-ordering-off", f"{RELAXED} is not set, and off before Mooncake 0.3.13"
    ).of(env(), env(), mooncake=("0.3.12.post1", "0.3.13")),
    MemoryExample(
        "relaxed-ordering-off",
        "'true' leaves it off",  # atoi makes 0 of it
        env(MC_IB_PCI_RELAXED_ORDERING="true"),
        env(MC_IB_PCI_RELAXED_ORDERING="1"),
        mooncake=("0.3.13", "0.3.12"),
    ),
    MemoryExample(
        "relaxed-ordering-off",
        "'7' leaves it off",  # refused, so the default counts
        env(MC_IB_PCI_RELAXED_ORDERING="7"),
        env(MC_IB_PCI_RELAXED_ORDERING="7"),
        mooncake=("0.3.12", "0.3.13"),
    ),
    MemoryExample("relaxed-ordering-off", "is not set").of(
        env(), env(MOONCAKE_PROTOCOL="tcp"), mooncake=("0.3.12", "0.3.12")
    ),
    MemoryExample("relaxed-ordering-off", "is not set").of(
        env(), env(MC_FORCE_TCP="1"), mooncake=("0.3.12", "0.3.8")
    ),
]


@each_row("example", EXAMPLES)
def test_a_memory_rule_finds_what_it_declares(example: MemoryExample) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is right."""

    def found(line: Line, turn: int) -> dict[str, str]:
        processes = understood(line)
        server = processes[0].server
        assert server is not None
        known = well_known_model(str(server.value("model_path")))
        geometry = known if isinstance(known, Unknown) else known.geometry
        if server.value("model_path") == "unequal":
            geometry = UNEQUAL
        versions = Versions(
            geometry, sglang_release(example.sglang[turn]), mooncake_release(example.mooncake[turn])
        )
        return {f.rule.id: f.text for f in findings(processes, [(server, versions)])}

    assert example.says in found(example.wrong, 0).get(example.id, "")
    assert example.id not in found(example.right, 1)


NAMED = ("", "", "")
