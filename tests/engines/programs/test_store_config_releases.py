"""What each SGLang release reads of the store's configuration.

The expected values were taken from each release's own MooncakeStoreConfig, run on the same input.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.framework.unknown import Unknown
from checks.releases.sglang import RELEASES, sglang_release, store_reader
from preflight.engines.programs.sglang_arguments import SettingValue
from preflight.engines.programs.store_config import (
    Source,
    StoreConfig,
    read_extra_config,
    read_store_config,
)
from preflight.launches.source import Origin, Word, file_reader
from tests.tables import each_row

PATH = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
MASTER = {"master_server_address": "m:1"}
NAMED, UNNAMED = ({**MASTER, "local_hostname": name} for name in ("j", ""))


def read(
    version: str,
    extra: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    file: dict[str, Any] | None = None,
) -> StoreConfig:
    words = {name: Word(text, Origin("e")) for name, text in (environment or {}).items()}
    given = SettingValue(None if extra is None else json.dumps(extra), "extra")
    return read_store_config(given, words, lambda _: json.dumps(file or {}), version)


FILE = {**MASTER, "local_hostname": "h", "metadata_server": "P2PHANDSHAKE"}
BY_ENV = {"MOONCAKE_MASTER": "m:1"}
BY_EITHER: tuple[tuple[Any, dict[str, str]], ...] = ((MASTER, {}), (None, BY_ENV))
BOTH_HOSTS = {"MOONCAKE_LOCAL_HOSTNAME": "a", "LOCAL_HOSTNAME": "b"}


@each_row(
    ("version", "file", "extra", "source"),
    [
        ("0.5.2", FILE, None, Source.ENVIRONMENT),
        ("0.5.3", FILE, None, Source.FILE),
        ("0.5.23", FILE, None, Source.FILE),
        ("0.5.6", None, {"client_server_address": "c:1"}, Source.ENVIRONMENT),
        ("0.5.7", None, {"client_server_address": "c:1"}, Source.EXTRA_CONFIG),
    ],
)
def test_the_source_that_counts(
    version: str, file: dict[str, Any] | None, extra: dict[str, Any] | None, source: Source
) -> None:
    """The file came with 0.5.3, and a client's address counts since 0.5.7."""
    config = read(version, extra, BY_ENV if file is None else {PATH: "f", **BY_ENV}, file)
    assert (config.source, config.error) == (source, None)
    assert (config.value("client_server_address") is None) is (source is not Source.EXTRA_CONFIG)


@each_row(
    ("version", "extra", "environment", "key", "value"),
    [
        # TCP was the default until 0.5.12: without registration, and without the NICs' nodes.
        *(
            (version, *given, key, value)
            for given in BY_EITHER
            for version, protocol, device in (
                ("0.5.2", "tcp", "auto"),
                ("0.5.4", "tcp", ""),
                ("0.5.12", "tcp", ""),
                ("0.5.13", "rdma", ""),
            )
            for key, value in (("protocol", protocol), ("device_name", device))
        ),
        ("0.5.22", MASTER, {"MOONCAKE_PROTOCOL": "tcp"}, "protocol", "rdma"),
        ("0.5.23", MASTER, {"MOONCAKE_PROTOCOL": "tcp"}, "protocol", "tcp"),
        # The environment's host goes before JSON's since 0.5.21; LOCAL_HOSTNAME only where it says
        # something.
        ("0.5.2", MASTER, BOTH_HOSTS, "local_hostname", "localhost"),
        ("0.5.20", NAMED, {"MOONCAKE_LOCAL_HOSTNAME": "a"}, "local_hostname", "j"),
        ("0.5.20", UNNAMED, {}, "local_hostname", ""),
        ("0.5.21", NAMED, BOTH_HOSTS, "local_hostname", "a"),
        ("0.5.21", NAMED, {"LOCAL_HOSTNAME": "b"}, "local_hostname", "b"),
        ("0.5.21", NAMED, {"LOCAL_HOSTNAME": ""}, "local_hostname", "j"),
        ("0.5.21", NAMED, {"MOONCAKE_LOCAL_HOSTNAME": ""}, "local_hostname", ""),
        ("0.5.21", UNNAMED, {}, "local_hostname", "localhost"),
        ("0.5.21", MASTER, {}, "local_hostname", "localhost"),
        ("0.5.5", None, {**BY_ENV, **BOTH_HOSTS}, "local_hostname", "b"),
        ("0.5.6", None, {**BY_ENV, **BOTH_HOSTS}, "local_hostname", "a"),
        ("0.5.20", None, {**BY_ENV, "LOCAL_HOSTNAME": ""}, "local_hostname", ""),
        ("0.5.21", None, {**BY_ENV, "LOCAL_HOSTNAME": ""}, "local_hostname", "localhost"),
    ],
)
def test_what_a_release_makes_of_a_key(
    version: str, extra: dict[str, Any] | None, environment: dict[str, str], key: str, value: str
) -> None:
    assert read(version, extra, environment).value(key) == value


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
    files = file_reader({"m.json": word}, lambda name: Unknown(name, absent=True))
    path = Word("m.json", Origin("run.sh", 9))
    environment = {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": path}
    found = read_store_config(SettingValue(None, "default"), environment, files, "0.5.23")
    assert {key: found.value(key) for key in known} == known
    assert {key for key in unknown if isinstance(found.value(key), Unknown)} == unknown
    assert found.error is None


FILES = dict.fromkeys(("a.json", "a.yaml", "a.TOML", "a.txt", "json"), "{}")


@pytest.mark.parametrize(
    ("name", "config", "refused"),
    [
        ("a.json", {}, ""),
        ("b.txt", "not here", ""),  # unknown before it is anything else
        ("a.yaml", "not read", ""),
        ("a.TOML", "not read", ""),
        ("a.txt", {}, "Unsupported config file"),
        ("json", {}, "Unsupported config file"),  # a name without a suffix
    ],
)
def test_a_file_of_the_extra_config(name: str, config: object, refused: str) -> None:
    absent = Unknown("not here", absent=True)
    given = SettingValue(f"@{name}", "a.sh:1")
    parsed, message = read_extra_config(given, lambda path: FILES.get(path, absent))
    if isinstance(config, str):
        assert isinstance(parsed, Unknown)
        assert config in parsed.reason
    else:
        assert parsed == config
    assert refused in (message or "")
    assert bool(message) is bool(refused)
