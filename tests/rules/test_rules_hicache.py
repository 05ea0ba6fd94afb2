"""Rules about SGLang's HiCache and disaggregation flags."""

from __future__ import annotations

import pytest

from preflight.launches.launch_files import read_text
from preflight.processes.processes import understand
from preflight.rules.launch_rules import findings
from tests.builders.launch_text import HICACHE, SERVER
from tests.builders.rule_examples import Example, name_of, prove

RADIX = "hicache-with-radix-disabled"

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
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)


@pytest.mark.parametrize(
    ("between", "together"),
    [
        ("&", "launch.sh:1, launch.sh:2"),
        ("", ""),  # the second starts once the first has ended
        ("& kill $!", ""),  # as here
    ],
)
def test_servers_that_never_run_together_share_no_memory(between: str, together: str) -> None:
    reading = read_text(f"{HICACHE} {between}\n{HICACHE}\n", "launch.sh", {})
    found = findings(understand(reading.commands, lambda _: ""))
    said = [one.text for one in found if one.rule.id == "gate-assumes-one-engine"]
    assert said == ([f"2 servers with HiCache run at one time: {together}"] if together else [])


def test_the_advice_for_a_decode_server_that_offloads_is_not_what_a_record_warns_of() -> None:
    """MP-2026-0033: the radix cache and offload of a decode server do not go together."""
    text = (
        f"{HICACHE} --disaggregation-mode decode --disaggregation-decode-enable-offload-kvcache "
        "--hicache-storage-backend mooncake"
    )
    found = findings(understand(read_text(text, "run.sh", {}).commands, lambda _: ""))
    (remedy,) = (one.remedy for one in found if one.rule.id == RADIX)
    assert remedy.startswith("in run.sh:1 remove --enable-hierarchical-cache")
    assert "--disaggregation-decode-enable-radix-cache" not in remedy


@pytest.mark.parametrize(
    ("line", "remedies"),
    [
        (f"{HICACHE} \\\n --disable-radix-cache", ["in run.sh:2 remove --disable-radix-cache"]),
        (
            f"{HICACHE} --disaggregation-mode decode",
            ["in run.sh:1 add --disaggregation-decode-enable-radix-cache"],
        ),
    ],
)
def test_the_advice_names_the_flag_that_this_launch_has_or_lacks(
    line: str, remedies: list[str]
) -> None:
    """It told a decode server without --disable-radix-cache to drop that."""
    found = findings(understand(read_text(line, "run.sh", {}).commands, lambda _: ""))
    assert [one.remedy for one in found if one.rule.id == RADIX] == remedies


DECODE_OFFLOAD = "--disaggregation-decode-enable-offload-kvcache"


@pytest.mark.parametrize(
    ("id_", "line", "remedy"),
    [
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
