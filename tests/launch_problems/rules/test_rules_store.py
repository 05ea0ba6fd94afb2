"""Rules about SGLang's configuration of the store, what servers share in it, and RDMA devices."""

from __future__ import annotations

import pytest

from preflight.launch_problems.rules.launch_rules import findings
from preflight.launches.shell_script import read_script
from tests.builders.launch_text import MASTER, SERVER, STORE, understood
from tests.builders.rule_examples import ADDRESS, CONFIG, GOOD, Example, Line, env, extra
from tests.tables import each_row

LINKER = f"{SERVER} --enable-unified-cache-external-linker"
LINKED = {**MASTER, "MOONCAKE_DEVICE": "mlx5_0", "MOONCAKE_PROTOCOL": "rdma"}
EXAMPLES = [
    Example(
        "store-config-refused",
        "local_hostname is empty (MOONCAKE_LOCAL_HOSTNAME at launch.sh:1): setup returns -600",
    ).of((env(MOONCAKE_LOCAL_HOSTNAME=""),), (env(LOCAL_HOSTNAME=""),)),
    Example("store-config-refused", "unsupported_protocol: write rdma or tcp").of(
        (env(MOONCAKE_PROTOCOL="nvlink"),), (env(MOONCAKE_PROTOCOL="efa"),)
    ),
    Example("segment-size-refused", "TypeError: setup(): incompatible function arguments").of(
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="-1"),), (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="0"),)
    ),
    Example(
        "segment-times-dp", "4.00 GiB is contributed by each of 8 data-parallel groups: 32.00 GiB"
    ).of(((f"{STORE} --dp-size 8 --enable-dp-attention", MASTER),), (GOOD,)),
    Example("master-without-port", "the master's address is '10.0.0.7'").of(
        (
            env(MOONCAKE_MASTER="10.0.0.7"),
            "mooncake_client --master_server_address=10.0.0.7 --protocol=tcp",
        ),
        (
            env(MOONCAKE_MASTER="10.0.0.7:50051"),
            env(MOONCAKE_MASTER="etcd://10.0.0.7"),
            env(MOONCAKE_MASTER="$HOST"),
            "mooncake_client --master_server_address=10.0.0.7:1 --protocol=tcp",
        ),
    ),
    Example(
        "standalone-without-switch",
        "SGLang then says that this Mooncake does not support tenant_id",
    ).of(
        ((STORE, {"MOONCAKE_CLIENT": "127.0.0.1:50052", "MOONCAKE_TENANT_ID": "a"}),),
        ((STORE, {"MOONCAKE_CLIENT": "a:1", "MOONCAKE_MASTER": "a:2", "MOONCAKE_TENANT_ID": "a"}),),
    ),
    Example(
        "standalone-without-switch",
        "SGLang then says that this Mooncake is too old for SSD offload",
    ).of(
        ((STORE, {"MOONCAKE_CLIENT": "127.0.0.1:50052", "MOONCAKE_ENABLE_SSD_OFFLOAD": "1"}),),
        (env(MOONCAKE_ENABLE_SSD_OFFLOAD="1"),),
    ),
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
    Example("two-transfer-engines", "SGLang's engine no device").of(
        ((f"{LINKER} --disaggregation-mode prefill", LINKED),),
        ((LINKER, LINKED),),  # SGLang makes no engine for a linker
    ),
    Example("tcp-takes-rdma", "protocol is tcp (MOONCAKE_PROTOCOL)").of(
        ((f"{SERVER} --disaggregation-mode decode", {"MOONCAKE_PROTOCOL": "tcp"}),),
        (env(MOONCAKE_PROTOCOL="tcp", SGLANG_HICACHE_MOONCAKE_REUSE_TE="0"),),
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


AT, SEGMENT = "in launch.sh:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE"
NAMES_NONE = 'add "master_server_address": "HOST:50051" (HOST runs mooncake_master)'


@each_row(
    ("launch", "release", "remedy"),
    [
        (STORE, None, f"{AT} add MOONCAKE_MASTER=HOST:50051 (HOST runs mooncake_master)"),
        ((STORE, {CONFIG: "store.json"}), None, f"in store.json {NAMES_NONE}"),
        (
            extra('{"prefetch_threshold": "256", ' + ADDRESS + "}"),
            *(None, f'{AT} write "prefetch_threshold": 256 instead of "prefetch_threshold": "256"'),
        ),
        (
            env(MOONCAKE_PROTOCOL="rmda"),
            *(None, f"{AT} write MOONCAKE_PROTOCOL=rdma instead of MOONCAKE_PROTOCOL=rmda"),
        ),
        (
            env(MOONCAKE_GLOBAL_SEGMENT_SIZE="512mb"),
            *(None, f"{AT} write {SEGMENT}=536870912 instead of {SEGMENT}=512mb"),
        ),
        (
            env(MOONCAKE_GLOBAL_SEGMENT_SIZE="4gb"),
            *("0.5.2", f"{AT} write {SEGMENT}=4294967296 instead of {SEGMENT}=4gb"),
        ),
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="much"), None, ""),
        (extra("{not json"), None, ""),
    ],
)
def test_a_refused_configuration_says_the_edit_where_one_mends_it(
    launch: Line, release: str | None, remedy: str
) -> None:
    every = findings(understood(launch, files={"store.json": "{}"}, sglang_version=release))
    ids = ("store-config-refused", "segment-size-refused")
    assert [found.remedy for found in every if found.id in ids] == [remedy]


def _rules_of(script: str) -> set[str]:
    commands = read_script(script, "launch.sh", {}, beside=lambda name: None).commands
    return {finding.id for finding in findings(understood(*commands))}


@pytest.mark.parametrize("line", ["source /opt/site.env", "export $(site-settings)"])
def test_no_master_is_not_said_behind_a_file_that_is_not_read(line: str) -> None:
    """The file may name the master, or Mooncake's own file: what is not read is unknown."""
    server = (
        "python3 -m sglang.launch_server --model-path x --enable-hierarchical-cache "
        "--hicache-size 4 --hicache-storage-backend mooncake\n"
    )
    assert "store-config-refused" in _rules_of(server)
    assert "store-config-refused" not in _rules_of(f"{line}\n{server}")
    vllm = (
        "vllm serve x --kv-transfer-config "
        """'{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'\n"""
    )
    assert "consumer-refused" in _rules_of(vllm)
    found = _rules_of(f"{line}\n{vllm}")
    assert "consumer-refused" not in found
    assert "consumer-ignored" not in found


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
    found = [one for one in findings(understood(line)) if one.id == "two-transfer-engines"]
    assert [one.text for one in found] == texts
    assert all(said in one.remedy for one, said in zip(found, remedies, strict=True))


def test_one_of_several_masters_is_no_address_of_them_all() -> None:
    """A client that asks etcd, a lone master, and masters of both kinds are left alone."""
    ha = "mooncake_master --enable_ha=true --etcd_endpoints='10.0.0.5:1;10.0.0.6:1'\n"
    redis = "mooncake_master --enable_ha --ha_backend_type=redis --ha_backend_connstring=a:1\n"
    client = "mooncake_client --master_server_address={} --protocol=tcp\n"
    server = f"MOONCAKE_MASTER={{}} {STORE}\n"
    etcd = "'etcd://10.0.0.5:1;10.0.0.6:1'"

    def said(script: str) -> list[str]:
        seen = findings(understood(*read_script(script, "launch.sh", {}).commands))
        return [each.remedy for each in seen if each.id == "ha-address-plain"]

    for dials in (client, server):
        plain, by_etcd = dials.format("10.0.0.1:50051"), dials.format(etcd)
        (remedy,) = said(ha + plain)
        assert etcd in remedy
        assert said(ha + by_etcd) == []
        assert said(redis + plain) == [""]  # how its clients name it was not run
        assert said(f"mooncake_master\n{plain}") == said(plain) == []
        assert said(f"mooncake_master --rpc_port=1\n{ha}{plain}") == []
        assert said(f"mooncake_master --enable_ha=$HA\n{plain}") == []
