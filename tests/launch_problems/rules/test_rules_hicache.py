"""Rules about SGLang's flags: HiCache, words left open, and both halves of disaggregation."""

from __future__ import annotations

import pytest

from checks.framework.unknown import Unknown
from preflight.launch_problems.rules.hicache import _is_known
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launches.compose import read_compose
from preflight.launches.launch_files import read_text
from preflight.launches.shell_script import read_script
from preflight.launches.source import Origin, Word
from preflight.processes.processes import LaunchProcess, understand
from tests.builders.launch_text import HICACHE, SERVER, SERVICE, STORE, service
from tests.builders.rule_examples import Example, Line
from tests.tables import each_row

RADIX = "hicache-with-radix-disabled"


DECODE_OFFLOAD = "--disaggregation-decode-enable-offload-kvcache"


@each_row(
    ("id_", "line", "remedy"),
    [
        # It told a decode server without --disable-radix-cache to drop that.
        (
            RADIX,
            f"{HICACHE} \\\n --disable-radix-cache",
            "in run.sh:2 remove --disable-radix-cache",
        ),
        (
            RADIX,
            f"{HICACHE} --disaggregation-mode decode",
            "add --disaggregation-decode-enable-radix-cache",
        ),
        # MP-2026-0033: the radix cache and offload of a decode server do not go together.
        (
            RADIX,
            f"{HICACHE} --disaggregation-mode decode {DECODE_OFFLOAD} "
            "--hicache-storage-backend mooncake",
            "remove --enable-hierarchical-cache: decode offload goes without it",
        ),
        (
            "decode-offload-misplaced",
            f"{SERVER} {DECODE_OFFLOAD}",
            f"remove {DECODE_OFFLOAD}, or write --disaggregation-mode decode",
        ),
        (
            "decode-offload-misplaced",
            f"{SERVER} {DECODE_OFFLOAD} --disaggregation-mode decode",
            "add --hicache-storage-backend mooncake",
        ),
        (
            "layout-rewritten",
            f"{HICACHE} --hicache-mem-layout page_first --hicache-io-backend direct",
            "write --hicache-mem-layout page_first_direct",
        ),
        (
            "attach-at-runtime",
            f"{HICACHE} --admin-api-key k --hicache-mem-layout layer_first",
            "write --hicache-mem-layout page_first",
        ),
    ],
)
def test_advice_is_of_the_one_case(id_: str, line: str, remedy: str) -> None:
    found = findings(understand(read_text(line, "run.sh", {}).commands, lambda _: ""))
    assert [one.remedy.removeprefix("in run.sh:1 ") for one in found if one.rule.id == id_] == [
        remedy
    ]


ID = "transfer-threads-too-few"
PREFILL = f"{SERVER} --disaggregation-mode prefill"
DECODE = f"{SERVER} --disaggregation-mode decode"
AT = "--disaggregation-bootstrap-port"
P2P = "P2PHANDSHAKE"
ROUTER = "python3 -m sglang_router.launch_router --pd-disaggregation"


def prefill(line: str = PREFILL, **variables: str) -> Line:
    names = {"pool": "THREAD_POOL_SIZE", "queues": "QUEUE_SIZE"}
    return (line, {f"SGLANG_DISAGGREGATION_{names[key]}": text for key, text in variables.items()})


EXAMPLES = [
    Example(
        "arguments-refused", "...: an example leaves words out here, and every SGLang refuses it"
    ).of((f"{SERVER} ...",), (SERVER,)),
    Example("hicache-size-unset", "--hicache-size -1: taken as not set").of(
        (f"{HICACHE} --hicache-size=-1",), (f"{HICACHE} --hicache-size 0 --hicache-ratio 2",)
    ),
    Example("decode-host-pool", "keeps a retraction pool in host memory").of(
        (f"{SERVER} --disaggregation-mode decode",), (f"{SERVER} --disaggregation-mode prefill",)
    ),
    Example(
        "pd-registration-silent", "--disaggregation-mode prefill with the transfer backend mooncake"
    ).of(
        (f"{SERVER} --disaggregation-mode prefill",),
        (f"{SERVER} --disaggregation-mode prefill --disaggregation-transfer-backend nixl",),
    ),
    Example("attach-at-runtime", "the host pool is not Mooncake's").of(
        ((f"{HICACHE} --admin-api-key k", {"MOONCAKE_STANDALONE_STORAGE": "1"}),),
        ((HICACHE, {"MOONCAKE_STANDALONE_STORAGE": "1"}),),
    ),
    Example(ID, "12 threads at most, as", (prefill(queues="13"),), (prefill(queues="12"),)),
    Example(ID, "1 thread, for 4 queues").of(
        (prefill(pool="1"),), (prefill(DECODE, pool="1"), prefill(pool="$N"))
    ),
    # One of two decode servers fits, one is not known, and one half of a pair is not here.
    *(
        Example("pd-backends-differ", "over nixl").of(
            (PREFILL, f"{DECODE} --disaggregation-transfer-backend nixl"), right
        )
        for right in (
            (PREFILL, DECODE, f"{DECODE} --disaggregation-transfer-backend nixl"),
            (PREFILL, f"{DECODE} --disaggregation-transfer-backend $BACKEND"),
            (f"{DECODE} --disaggregation-transfer-backend nixl",),
        )
    ),
    # Without one in the URL decode takes its own.
    Example(
        "pd-bootstrap-differs", "is 9000; the router says none, and decode takes its own, 8998"
    ).of(
        (f"{PREFILL} {AT} 9000", DECODE, f"{ROUTER} --prefill http://localhost:30000"),
        (
            f"{PREFILL} {AT} 9000",
            f"{DECODE} {AT} 9000",
            f"{ROUTER} --prefill http://localhost:30000",
        ),
    ),
    Example(
        "pd-bootstrap-differs",
        "the router says 9000",
        (PREFILL, f"{ROUTER} --prefill http://10.0.0.1:30000 9000 --decode http://10.0.0.2:1"),
        # The router knows two, and the launch shows one: which it is is not known.
        (
            PREFILL,
            f"{ROUTER} --prefill http://10.0.0.1:30000 9000 --prefill http://10.0.0.2:30000 8998",
        ),
    ),
    Example("pd-bootstrap-differs", "the router says 9000").of(
        (PREFILL, f"{ROUTER} --prefill http://localhost:30000 9000"),
        (f"{PREFILL} {AT} $PORT", f"{ROUTER} --prefill http://localhost:30000 9000"),
    ),
    Example("pd-router-misdirected", "runs with --disaggregation-mode null").of(
        (SERVER, f"{ROUTER} --prefill http://localhost:30000"),
        (f"{SERVER} --disaggregation-mode $MODE", f"{ROUTER} --prefill http://localhost:30000"),
    ),
]


def test_a_router_of_compose_is_held_against_the_service_that_it_names() -> None:
    """Both listen on one port, each in a network of its own."""
    text = f"""
services:
  one: {{image: x, command: {PREFILL}}}
  two: {{image: x, command: {DECODE}}}
  router:
    image: x
    command: >-
      {ROUTER} --prefill http://two:30000 --decode http://one:30000 --prefill http://one:30000
      --decode http://two:30001 --decode http://elsewhere:30001
"""
    processes = understand(read_compose(text, "compose.yaml", {}).commands, Unknown)
    said = [one.text for one in findings(processes) if one.rule.id == "pd-router-misdirected"]
    assert said == [
        "router: --prefill http://two:30000: that server runs with --disaggregation-mode decode",
        "router: --decode http://one:30000: that server runs with --disaggregation-mode prefill",
        "router: --decode http://two:30001: that service listens on port 30000",
    ]


@pytest.mark.parametrize(
    ("master", "address", "metadata", "said"),
    [
        ("", "master:50052", P2P, "master master:50052: that service listens on port 50051"),
        ("--rpc_port 50052", "master:50052", P2P, ""),
        ("--rpc_port $PORT", "master:50052", P2P, ""),
        ("", "other:50052", P2P, ""),
        ("", "master.example.com:50052", P2P, ""),
        (
            *("", "master:50051", "http://master:8080/metadata"),
            "metadata-http master:8080: that service listens on port 50051 or 9003",
        ),
    ],
)
def test_a_service_of_compose_is_called_at_a_port_that_it_has(
    master: str, address: str, metadata: str, said: str
) -> None:
    """Which ports are published decides nothing between two containers."""
    text = f"""
services:
  master: {{image: x, command: mooncake_master {master}, ports: ["50052:50051"]}}
  server:
    image: x
    command: {SERVER} --enable-hierarchical-cache --hicache-storage-backend mooncake
    environment: {{MOONCAKE_MASTER: "{address}", MOONCAKE_TE_META_DATA_SERVER: "{metadata}"}}
"""
    processes = understand(read_compose(text, "compose.yaml", {}).commands, Unknown)
    found = [one.text for one in findings(processes) if one.rule.id == "service-misdirected"]
    name = "MOONCAKE_TE_META_DATA_SERVER" if "http" in metadata else "MOONCAKE_MASTER"
    assert found == ([f"{said} ({name} at compose.yaml:7)"] if said else [])


CLIENT = "mooncake_client --global_segment_size=1GB"
IDS = ("arguments-not-set", "script-arguments")


def processes(script: str, **environment: str) -> tuple[LaunchProcess, ...]:
    commands = read_script(script, "launch.sh", environment).commands
    return understand(commands, lambda _: service())


def said(script: str, **environment: str) -> list[str]:
    found = findings(processes(script, **environment))
    return [f"{f.rule.id}: {f.text}" for f in found if f.rule.id in IDS]


@each_row("program", [STORE, CLIENT, f"{SERVICE} --config=/c.json"])
@each_row(
    ("word", "text"),
    [
        ("$EXTRA", "$EXTRA: EXTRA is not set"),
        ('"${ARGS[@]}"', "${ARGS[@]}: ARGS is not set"),
        ('"$@"', "$@ passes them on"),
        ("$*", "$* passes them on"),
    ],
)
def test_a_word_that_may_hold_flags_is_named(program: str, word: str, text: str) -> None:
    assert [line.partition(": ")[2].partition(": ")[2] for line in said(f"{program} {word}")] == [
        text
    ]


@each_row(
    "script",
    [
        f"{STORE} $(flags)",  # what a command writes is named as not read; nobody sets it
        f"{STORE} ${{EXTRA:-}}",
        f"{STORE} ${{EXTRA:---tp 4}}",
        f"{STORE} --max-total-tokens $N",  # a flag's value: unknown where it decides
        f"{CLIENT} --local_buffer_size $N",
        f"EXTRA=; {STORE} $EXTRA",
        f"unset EXTRA; {STORE} $EXTRA",
        f'ARGS=(); {STORE} "${{ARGS[@]}}"',
        f'f() {{ {STORE} "$@"; }}; f --tp 4',
        "other $EXTRA",
    ],
)
def test_what_is_known_or_another_flags_value_is_not(script: str) -> None:
    assert said(script) == []


REFUSED, UNKNOWN = "arguments-refused", "argument-unknown"
WRITE = "in launch.sh:2 write {} instead of {}"
# The beginning of two since the alias went, as the parsers of 0.5.19 and 0.5.20 say.
GRAPH, TP, LAYOUT = (
    "--cuda-graph-max-bs",
    "--disaggregation-decode-tp",
    "--hicache-mem-layout page_",
)
TWO_MEANT = WRITE.format(f"{GRAPH}-decode or {GRAPH}-prefill", GRAPH)
REMOVE, GIVE = f"in launch.sh:2 remove {TP}", "give --sglang-version if it is one of"
WHOLE = "in launch.sh:2 write a whole number behind --tp, not 4x"
TWO_LINES = "python3 -m sglang.launch_server --model-path m \\\n  {}"


@each_row(
    ("flag", "release", "rule", "remedy"),
    [
        # No known release has it, and it is another's name with one mistake: certain.
        ("--hicache-sise 9", None, REFUSED, WRITE.format("--hicache-size", "--hicache-sise")),
        ("--hicache_size=9", None, REFUSED, WRITE.format("--hicache-size", "--hicache_size")),
        ("--hicache-szie 9", None, REFUSED, WRITE.format("--hicache-size", "--hicache-szie")),
        ("--hicache-sise 9", "0.5.9", REFUSED, WRITE.format("--hicache-size", "--hicache-sise")),
        # No known release has it, and a newer one may: new names are as near to old ones.
        ("--fp6-gemm-backend x", None, UNKNOWN, ""),
        ("--enable-inc-tokenizer", None, UNKNOWN, ""),
        # Another release has it.
        (f"{TP} 2", None, UNKNOWN, f"{REMOVE}, or {GIVE} 0.5.2 to 0.5.9"),
        (f"{TP} 2", "0.5.23", REFUSED, f"{REMOVE}, or run one of SGLang 0.5.2 to 0.5.9"),
        # A value that the parser refuses.
        (f"{LAYOUT}frist", "0.5.23", REFUSED, WRITE.format(f"{LAYOUT}first", f"{LAYOUT}frist")),
        ("--enable-metrics --tp 4x", "0.5.23", REFUSED, WHOLE),
        (f"{GRAPH} 8", "0.5.23", REFUSED, f"{TWO_MEANT}, or run one of SGLang 0.5.2 to 0.5.19"),
        (f"{GRAPH}=8", None, UNKNOWN, f"{TWO_MEANT}, or {GIVE} 0.5.2 to 0.5.19"),
        ("--hicache-s 9", "0.5.23", REFUSED, ""),
    ],
)
def test_a_refused_flag_is_a_failure_where_that_is_certain_and_says_the_edit(
    flag: str, release: str | None, rule: str, remedy: str
) -> None:
    commands = read_script(TWO_LINES.format(flag), "launch.sh", {}).commands
    found = findings(understand(commands, lambda _: service(), release))
    said = [f for f in found if f.rule.id in (REFUSED, UNKNOWN)]
    assert [(f.rule.id, f.remedy) for f in said] == ([(rule, remedy)] if rule else [])
    assert all(str(f.origin) == "launch.sh:2" for f in said)


@each_row(
    ("text", "unresolved", "known"),
    [
        ("8", (), True),
        ("$SIZE", ("SIZE",), False),
        ("--hicache-size=$SIZE", ("SIZE",), True),  # its name is
        ("--$NAME=8", ("NAME",), False),
        ("--`name`=8", ("name",), False),
        ("size=$SIZE", ("SIZE",), False),
    ],
)
def test_which_words_are_known(text: str, unresolved: tuple[str, ...], known: bool) -> None:
    assert _is_known(Word(text, Origin("launch.sh", 1), unresolved)) is known
