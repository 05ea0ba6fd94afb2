"""What SGLang's real parsers make of lines, and what this project does.

    PYTHONPATH=tools python -m tests.sglang.argument_tables

holds this project's parser against each release's own on several lines for every argument, and
records what the real ones make of ``LINES``. The table itself is
``tools/write_sglang_arguments.py``'s.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from write_sglang_arguments import real

from preflight.launches.source import Origin, Word
from preflight.programs.sglang_argument_tables import argument_table, known_releases
from preflight.programs.sglang_arguments import parse_sglang_arguments

RECORDED = Path(__file__).parent / "recorded_arguments.json"

# Every published release since the first whose sizing is known.
VERSIONS = list(known_releases())

# Lines whose reading by the real parsers is recorded: what a launch of HiCache and Mooncake says,
# and every way in which a line goes wrong.
LINES = [
    shlex.split(line)
    for line in """
    --model-path m --tp 8 --enable-hierarchical-cache --hicache-size 100
    --model m --tp-size 8 --dp 4 --enable-dp-attention --ep 8 --pp-size 2
    --model-path=m --hicache-ratio=1.5 --page-size=64 --mem-fraction-static=0.88
    --model-path m --hicache-mem-layout layer_first
    --model-path m --hicache-mem-layout page_first
    --model-path m --hicache-mem-layout page_first_direct
    --model-path m --hicache-mem-layout page_head
    --model-path m --hicache-mem-layout page_last
    --model-path m --hicache-write-policy write_through
    --model-path m --hicache-write-policy write-through
    --model-path m --hicache-io-backend direct
    --model-path m --hicache-io-backend kernel_ascend
    --model-path m --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout
    --model-path m --hicache-storage-backend eic
    --model-path m --hicache-storage-backend dynamic
    --model-path m --hicache-storage-backend redis
    --model-path m --hicache-storage-backend-extra-config '{"global_segment_size": "4gb"}'
    --model-path m --hicache-storage-prefetch-policy best
    --model-path m --hicache-host-memory-fraction 0.5
    --model-path m --hicache-host-memory-mode buffer_only
    --model-path m --enable-lmcache
    --model-path m --disaggregation-mode decode --disaggregation-decode-enable-offload-kvcache
    --model-path m --disaggregation-mode prefill --disaggregation-ib-device mlx5_0,mlx5_1
    --model-path m --disaggregation-transfer-backend nixl
    --model-path m --attn-dp-size 4
    --model-path m --attention-context-parallel-size 2
    --model-path m --moe-dp-size 2
    --model-path m --dcp-size 2
    --model-path m --kv-cache-dtype fp8_e4m3
    --model-path m --kv-cache-dtype bf16
    --model-path m --kv-cache-dtype fp4_e2m1
    --model-path m --kv-cache-dtype int8
    --model-path m --max-total-tokens 1Mi
    --model-path m --context-length 128k --chunked-prefill-size 8k
    --model-path m --context-length 1.5Ki
    --model-path m --context-length 131072 --max-running-requests 256
    --model-path m --numa-node 0 0 1 1
    --model-path m --cuda-graph-bs 1 2 4 8
    --model-path m --speculative-algorithm EAGLE --speculative-num-steps 3
    --model-path m --speculative-algorithm EAGLE9
    --model-path m --swa-full-tokens-ratio 0.25
    --model-path m --hybrid-kvcache-ratio
    --model-path m --hybrid-kvcache-ratio 0.3
    --model-path m --enable-ep-moe
    --model-path m --enable-deepep-moe
    --model-path m --prefill-round-robin-balance
    --model-path m --disable-cuda-graph
    --model-path m --enable-piecewise-cuda-graph
    --model-path m --disable-piecewise-cuda-graph
    --model-path m --config launch.yaml
    --model-path m --cpu-offload-gb 40
    --model-path m --attention-backend fa3
    --model-path m --attention-backend nsa
    --model-path m --attention-backend dsa
    --model-path m --nsa-prefill-backend fa3
    --model-path m --enable-dp-lm-head --no-enable-dp-lm-head
    --model-path m --no-dllm-fdfo
    --model-path m --hicache 2
    --model-path m --hicache-s 2
    --model-path m --hicache-si 2
    --model-path m --hicache-sise 2
    --model-path m --hicache-size
    --model-path m --hicache-size 30.5
    --model-path m --hicache-size -1
    --model-path m --hicache-size=-1
    --model-path m --hicache-size --page-size 64
    --model-path m --hicache-ratio two
    --model-path m --enable-hierarchical-cache=true
    --model-path m --enable-hierarchical-cache true
    --model-path m --enable-hier
    --model-path m --tp-size 8 --tp 4
    --model-path m --page 64
    --model-path m --mem 0.9
    --model-path m -tp 8
    --model-path m hicache-size 30
    --model-path m --help
    -h
    --tp 8
    """.strip().splitlines()
]


def read(version: str, line: Sequence[str]) -> dict[str, Any]:
    """What this project makes of ``line``, as the runner tells it of the real parser."""
    parsed = parse_sglang_arguments([Word(word, Origin("line")) for word in line], version)
    if parsed.error is not None:
        return {"error": parsed.error}
    given = {name: parsed.value(name) for name in parsed.settings if parsed.given(name)}
    return {"given": given, "left": [word.text for word in parsed.unrecognized]}


def several_lines(version: str) -> list[list[str]]:
    """For every argument: its flags, a value of each kind, and its name cut short."""
    lines = []
    for row in argument_table(version).rows:
        values = ["7", "0.5", "x", "1.5Ki", "2M", '["a"]', '{"decode": {}}', "None", "", "-3"]
        values += [str(choice) for choice in (row["choices"] or ())][:3]
        for flag in row["flags"]:
            lines += [[flag], [f"{flag}=7"], [f"{flag}="], [flag, "7", "8"], [flag[:-1], "7"]]
            lines += [[flag, value] for value in values]
            lines += [[flag[: len(flag) // 2], "7"], [f"{flag}-x", "7"], [f"{flag[:-2]}=7"]]
    return [["--model-path", "m", *line] for line in lines]


def differences(version: str) -> list[str]:
    """Where this project reads a line otherwise than the release's own parser."""
    lines = several_lines(version)
    results = real(version, lines)["results"]
    return [
        f"{version}: {line}: {comparable(own)}, really {comparable(result)}"
        for line, result in zip(lines, results, strict=True)
        if comparable(own := read(version, line)) != comparable(result)
    ]


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Without the order in which an ambiguous option's candidates are named."""
    before, found, names = result.get("error", "").partition(" could match ")
    return {"error": before, "names": sorted(names.split(", "))} if found else result


def recorded(results: dict[str, list[dict[str, Any]]]) -> str:
    """For each of LINES, the releases by what they make of it."""
    lines = []
    for number, line in enumerate(LINES):
        groups: dict[str, list[str]] = {}
        for version in VERSIONS:
            groups.setdefault(json.dumps(results[version][number]), []).append(version)
        rows = [f"  [{json.dumps(' '.join(v))}, {k}]" for k, v in groups.items()]
        lines.append(f" [{json.dumps(line)}, [\n" + ",\n".join(rows) + "\n ]]")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    answers = {version: real(version, LINES)["results"] for version in VERSIONS}
    RECORDED.write_text(recorded(answers))
    wrong = [difference for version in VERSIONS for difference in differences(version)]
    print(*wrong, f"{len(wrong)} differences", sep="\n")


if __name__ == "__main__":
    main()
