"""Rules about RDMA devices, transfer engines and variables that nothing reads."""

from __future__ import annotations

import pytest

from preflight.rules.launch_rules import findings
from tests.builders.launch_text import MASTER, SERVER, STORE, understood
from tests.builders.rule_examples import GOOD, Example, Line, env

EXAMPLES = [
    Example(
        "device-name-syntax",
        "device_name: ' mlx5_1' has a blank",
        (env(MOONCAKE_DEVICE="mlx5_0, mlx5_1"),),
        # SGLang strips its own list before Mooncake sees it.
        (f"{SERVER} --disaggregation-ib-device 'mlx5_0, mlx5_1,'",),
    ),
    Example(
        "two-transfer-engines",
        "the store has no device",
        (GOOD,),
        (
            (f"{STORE} --mooncake-ib-device mlx5_0", {**MASTER, "MOONCAKE_DEVICE": "mlx5_0"}),
            # A rank whose segment lies in a mooncake_client has no engine for it.
            env(MOONCAKE_STANDALONE_STORAGE="1", MOONCAKE_CLIENT="10.0.0.1:50052"),
        ),
    ),
    Example("tcp-takes-rdma", "protocol is tcp (MOONCAKE_PROTOCOL)").of(
        ((f"{SERVER} --disaggregation-mode decode", {"MOONCAKE_PROTOCOL": "tcp"}),),
        (env(MOONCAKE_PROTOCOL="tcp", SGLANG_HICACHE_MOONCAKE_REUSE_TE="0"),),
    ),
    Example("local-buffer-ignored", "MOONCAKE_LOCAL_BUFFER_SIZE=1gb has no effect on SGLang").of(
        (env(MOONCAKE_LOCAL_BUFFER_SIZE="1gb"),),
        (("python -m mooncake.mooncake_store_service", {"MOONCAKE_LOCAL_BUFFER_SIZE": "1gb"}),),
    ),
    Example("proxy-in-the-way", "m.cold, 127.0.0.1 is not in it").of(
        (
            (
                "mooncake_client --master_server_address=m.cold:1",
                {"https_proxy": "p", "no_proxy": "d"},
            ),
        ),
        (
            (
                "mooncake_client --master_server_address=m.corp:1 --metadata_server=http://[::1]/x",
                {"https_proxy": "p:1", "no_proxy": ".corp,*"},
            ),
            ("mooncake_master", {"http_proxy": "p:1"}),
            (
                "mooncake_master --etcd_endpoints=http://e:2379",
                {"http_proxy": "p:1", "no_proxy": "e"},
            ),
        ),
    ),
    Example("proxy-in-the-way", "SGLang server starts with http_proxy, no_proxy is 'a'").of(
        ((f"{SERVER} --disaggregation-mode prefill", {"http_proxy": "p:1", "no_proxy": "a"}),),
        ((f"{SERVER} --disaggregation-mode prefill", {"http_proxy": "p:1", "no_proxy": "*"}),),
    ),
]


STORED = {**MASTER, "MOONCAKE_DEVICE": "mlx5_0"}
HTTP = "http://10.0.0.1:8080/metadata"


@pytest.mark.parametrize(
    ("line", "texts", "remedies"),
    [
        (
            (STORE, STORED),
            ["the store has device 'mlx5_0', SGLang's engine no device"],
            ["add --mooncake-ib-device mlx5_0"],
        ),
        (
            (f"{STORE} --disaggregation-mode prefill", STORED),
            ["the store has device 'mlx5_0', SGLang's engine no device"],
            ["add --disaggregation-ib-device mlx5_0"],
        ),
        (
            (f"{STORE} --mooncake-ib-device mlx5_1", STORED),
            ["the store has device 'mlx5_0', SGLang's engine device 'mlx5_1'"],
            ["give the store 'mlx5_1', as --mooncake-ib-device has it (MOONCAKE_DEVICE at"],
        ),
        (
            (
                f"{STORE} --mooncake-ib-device mlx5_0",
                {**STORED, "MOONCAKE_TE_META_DATA_SERVER": HTTP},
            ),
            [f"the store has the metadata server {HTTP!r}, SGLang's engine P2PHANDSHAKE"],
            ["write P2PHANDSHAKE as its metadata server (MOONCAKE_TE_META_DATA_SERVER at"],
        ),
    ],
)
def test_two_engines_hear_what_differs(line: Line, texts: list[str], remedies: list[str]) -> None:
    """All three conditions were named, whichever of them was not met."""
    found = [one for one in findings(understood(line)) if one.rule.id == "two-transfer-engines"]
    assert [one.text for one in found] == texts
    assert all(said in one.remedy for one, said in zip(found, remedies, strict=True))
