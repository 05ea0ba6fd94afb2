"""Rules about SGLang's configuration of the store, what servers share in it, and RDMA devices."""

from __future__ import annotations

from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.store import _name_error
from tests.builders.launch_text import HICACHE, MASTER, SERVER, STORE, understood
from tests.builders.rule_examples import ADDRESS, CONFIG, GOOD, Example, Line, env, extra
from tests.tables import each_row

LAYOUT = "--hicache-mem-layout"


def _clients(name: str) -> tuple[str, str]:
    client = f"mooncake_client --host={name} --metadata_server=http://10.0.0.1:8080/metadata --port"
    return f"{client}=1", f"{client}=2"


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
    Example("tcp-takes-rdma", "protocol is tcp (MOONCAKE_PROTOCOL)").of(
        ((f"{SERVER} --disaggregation-mode decode", {"MOONCAKE_PROTOCOL": "tcp"}),),
        (env(MOONCAKE_PROTOCOL="tcp", SGLANG_HICACHE_MOONCAKE_REUSE_TE="0"),),
    ),
    Example("tcp-takes-rdma", "protocol is tcp (MOONCAKE_PROTOCOL)").of(
        ((f"{SERVER} --disaggregation-mode decode", {"MOONCAKE_PROTOCOL": "tcp"}),),
        (
            (
                f"{SERVER} --disaggregation-mode decode",
                {"MOONCAKE_PROTOCOL": "tcp", "MC_FORCE_TCP": "1"},
            ),
        ),
    ),
    Example("layout-rewritten", "layer_first with the Mooncake store").of(
        ((f"{STORE} {LAYOUT} layer_first", MASTER),), ((f"{STORE} {LAYOUT} page_first", MASTER),)
    ),
    Example("layout-rewritten", "layer_first with the Mooncake store").of(
        ((f"{STORE} {LAYOUT} layer_first", MASTER),), (f"{HICACHE} {LAYOUT} layer_first",)
    ),
    Example("client-name-twice", "are both 10.0.0.5:12345 in http://10.0.0.1:8080/metadata").of(
        _clients("10.0.0.5:12345"), _clients("10.0.0.5")
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
    assert [found.remedy for found in every if found.rule.id in ids] == [remedy]


@each_row(
    ("name", "error"),
    [
        ("mlx5_0", ""),
        ("", "is empty"),
        (" ", "is empty"),
        ("$NIC", ""),
        ("mlx5_0:1", "has a port, which is NCCL's spelling"),
        ('"mlx5_0"', "has quotes in it"),
        ("'mlx5_0", "has quotes in it"),
        *((name, "has a blank in it, which Mooncake takes as part of the name")
          for name in ("mlx5 0", " mlx5_0", "mlx5_0\t")),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_name_of_a_device(name: str, error: str) -> None:
    assert _name_error(name) == error
