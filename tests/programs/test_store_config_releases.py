"""What each SGLang release reads of the store's configuration.

The expected values were taken from each release's own MooncakeStoreConfig, run on the same input.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.base.unknown import Unknown
from checks.releases.sglang import RELEASES, sglang_release, store_reader
from preflight.launches.source import Origin, Word, reads_written
from preflight.programs.sglang_arguments import SettingValue
from preflight.programs.store_config import Source, StoreConfig, read_store_config
from tests.tables import each_row

PATH = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
MASTER = {"master_server_address": "m:1"}


def read(
    version: str,
    extra: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    file: dict[str, Any] | None = None,
) -> StoreConfig:
    words = {name: Word(text, Origin("e")) for name, text in (environment or {}).items()}
    given = SettingValue(None if extra is None else json.dumps(extra), "extra")
    return read_store_config(given, words, lambda _: json.dumps(file or {}), version)


@pytest.mark.parametrize(
    ("version", "source"),
    [("0.5.2", Source.ENVIRONMENT), ("0.5.3", Source.FILE), ("0.5.23", Source.FILE)],
)
def test_the_config_file_came_with_0_5_3(version: str, source: Source) -> None:
    environment = {PATH: "f", "MOONCAKE_MASTER": "m:1"}
    file = {**MASTER, "local_hostname": "h", "metadata_server": "P2PHANDSHAKE"}
    config = read(version, environment=environment, file=file)
    assert (config.source, config.error) == (source, None)


@pytest.mark.parametrize(
    ("version", "source"), [("0.5.6", Source.ENVIRONMENT), ("0.5.7", Source.EXTRA_CONFIG)]
)
def test_a_client_address_counts_since_0_5_7(version: str, source: Source) -> None:
    config = read(version, {"client_server_address": "c:1"}, {"MOONCAKE_MASTER": "m:1"})
    assert config.source is source
    assert (config.value("client_server_address") is None) is (source is Source.ENVIRONMENT)


@pytest.mark.parametrize(
    ("version", "protocol", "device"),
    [("0.5.2", "tcp", "auto"), ("0.5.4", "tcp", ""), ("0.5.12", "tcp", ""), ("0.5.13", "rdma", "")],
)
def test_defaults(version: str, protocol: str, device: str) -> None:
    """TCP was the default until 0.5.12: without registration, and without the NICs' nodes."""
    for config in (read(version, MASTER), read(version, environment={"MOONCAKE_MASTER": "m:1"})):
        assert (config.value("protocol"), config.value("device_name")) == (protocol, device)


@pytest.mark.parametrize(
    ("version", "json_host", "environment", "host"),
    [
        ("0.5.2", None, {"MOONCAKE_LOCAL_HOSTNAME": "a", "LOCAL_HOSTNAME": "b"}, "localhost"),
        ("0.5.20", "j", {"MOONCAKE_LOCAL_HOSTNAME": "a"}, "j"),
        ("0.5.20", "", {}, ""),
        ("0.5.21", "j", {"MOONCAKE_LOCAL_HOSTNAME": "a", "LOCAL_HOSTNAME": "b"}, "a"),
        ("0.5.21", "j", {"LOCAL_HOSTNAME": "b"}, "b"),
        ("0.5.21", "j", {"LOCAL_HOSTNAME": ""}, "j"),
        ("0.5.21", "j", {"MOONCAKE_LOCAL_HOSTNAME": ""}, ""),
        ("0.5.21", "", {}, "localhost"),
        ("0.5.21", None, {}, "localhost"),
    ],
)
def test_the_host_name_of_json(
    version: str, json_host: str | None, environment: dict[str, str], host: str
) -> None:
    """The environment goes before it since 0.5.21; LOCAL_HOSTNAME only where it says something."""
    extra = MASTER if json_host is None else {**MASTER, "local_hostname": json_host}
    assert read(version, extra, environment).value("local_hostname") == host


@pytest.mark.parametrize(
    ("version", "environment", "host"),
    [
        ("0.5.5", {"MOONCAKE_LOCAL_HOSTNAME": "a", "LOCAL_HOSTNAME": "b"}, "b"),
        ("0.5.6", {"MOONCAKE_LOCAL_HOSTNAME": "a", "LOCAL_HOSTNAME": "b"}, "a"),
        ("0.5.20", {"LOCAL_HOSTNAME": ""}, ""),
        ("0.5.21", {"LOCAL_HOSTNAME": ""}, "localhost"),
    ],
)
def test_the_host_name_of_the_environment(
    version: str, environment: dict[str, str], host: str
) -> None:
    config = read(version, environment={"MOONCAKE_MASTER": "m:1", **environment})
    assert config.value("local_hostname") == host


@pytest.mark.parametrize(("version", "protocol"), [("0.5.22", "rdma"), ("0.5.23", "tcp")])
def test_the_protocol_that_json_leaves_out(version: str, protocol: str) -> None:
    assert read(version, MASTER, {"MOONCAKE_PROTOCOL": "tcp"}).value("protocol") == protocol


@pytest.mark.parametrize(
    ("version", "size", "refused"),
    [
        ("0.5.3", "4gb", "invalid literal for int() with base 10: '4gb'"),
        ("0.5.3", "4294967296", None),
        ("0.5.3", None, None),
        ("0.5.4", "4gb", None),
    ],
)
def test_gigabytes_came_with_0_5_4(version: str, size: str | None, refused: str | None) -> None:
    environment = {"MOONCAKE_MASTER": "m:1"}
    if size is not None:
        environment["MOONCAKE_GLOBAL_SEGMENT_SIZE"] = size
    error = read(version, environment=environment).error
    assert (error is None) is (refused is None)
    assert (refused or "") in (error or "")


@each_row(
    ("version", "key", "value", "error"),
    [
        ("0.5.23", "prefetch_threshold", "256", "prefetch_threshold must be int, got str"),
        ("0.5.23", "prefetch_threshold", True, None),
        ("0.5.23", "prefetch_threshold", 1.5, "prefetch_threshold must be int, got float"),
        ("0.5.23", "prefetch_timeout_base", None, "prefetch_timeout_base must be number, got None"),
        ("0.5.23", "prefetch_timeout_base", 2, None),
        ("0.5.23", "hicache_storage_pass_prefix_keys", 1, "must be bool, got int"),
        ("0.5.8", "hicache_storage_pass_prefix_keys", 1, None),
        ("0.5.20", "prefetch_timeout_max", "5", "prefetch_timeout_max must be number, got str"),
        ("0.5.2", "prefetch_threshold", "256", None),
    ],
)
def test_hicaches_own_keys_have_types(
    version: str, key: str, value: object, error: str | None
) -> None:
    found = read(version, {**MASTER, key: value}).error
    assert (found is None) is (error is None)
    assert (error or "") in (found or "")


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("0.5.2", ["check_server", "standalone_storage", "enable_ssd_offload", "tenant_id"]),
        ("0.5.4", ["standalone_storage", "enable_ssd_offload", "tenant_id"]),
        ("0.5.7", ["enable_ssd_offload", "tenant_id"]),
        ("0.5.12", ["tenant_id"]),
        ("0.5.17", []),
    ],
)
def test_keys_that_a_release_does_not_know(version: str, unknown: list[str]) -> None:
    """They are passed over, and what they would set is off."""
    keys = ("check_server", "standalone_storage", "enable_ssd_offload", "tenant_id")
    config = read(version, {**MASTER, **dict.fromkeys(keys, True)})
    assert list(config.unknown_keys) == unknown
    assert all(config.value(key) in (False, "default") for key in unknown)


@pytest.mark.parametrize(("version", "asked"), [("0.5.5", 2**30), ("0.5.6", None)])
def test_the_local_buffer_of_the_extra_config(version: str, asked: int | None) -> None:
    config = read(version, {**MASTER, "local_buffer_size": 2**30})
    assert config.local_buffer_bytes == asked
    assert ("local_buffer_size" in config.unknown_keys) is (asked is None)


def test_versions() -> None:
    assert store_reader(None) is RELEASES[-1].store
    assert store_reader("0.5.11") == sglang_release("0.5.9").store
    assert store_reader("0.4.9") is RELEASES[0].store
    assert [row.first for row in RELEASES] == sorted(row.first for row in RELEASES)


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        (
            '{"local_hostname": "$(hostname -I)", "protocol": "tcp", '
            '"master_server_address": "a:1", "global_segment_size": "$SIZE"}',
            {"protocol": "tcp", "master_server_address": "a:1"},
            {"local_hostname", "global_segment_size"},
        ),
        # What is not known is the shape of it, or stands where nothing shows it.
        ('{"port": $PORT, "protocol": "tcp"}', {}, {"protocol", "local_hostname"}),
        ('{"$KEY": 1, "protocol": "tcp"}', {}, {"protocol", "local_hostname"}),
        ('{"protocol": "tcp"}', {}, {"protocol", "local_hostname"}),
    ],
)
def test_of_a_file_that_is_known_in_part_the_rest_is_known(
    text: str, known: dict[str, str], unknown: set[str]
) -> None:
    """``cat > mooncake.json <<EOF`` with the host's own address in it."""
    word = Word(text, Origin("run.sh", 3), ("$(...)",))
    files = reads_written({"m.json": word}, lambda name: Unknown(name, absent=True))
    path = Word("m.json", Origin("run.sh", 9))
    environment = {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": path}
    found = read_store_config(SettingValue(None, "default"), environment, files, "0.5.23")
    assert {key: found.value(key) for key in known} == known
    assert {key for key in unknown if isinstance(found.value(key), Unknown)} == unknown
    assert found.error is None
