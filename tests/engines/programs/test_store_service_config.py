"""The store service's settings: argparse's words, the file or the environment, and overrides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from preflight.engines.programs.store_service_config import (
    ServiceConfig,
    read_service_config,
    service_arguments,
    store_bool,
)
from preflight.launches.source import Origin, Word
from tests.tables import each_row

HERE = Origin("launch.sh", 1)


def words(*texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, HERE) for text in texts)


def config(*arguments: str, **environment: str) -> ServiceConfig:
    given_words = {name: Word(text, HERE) for name, text in environment.items()}
    found = read_service_config(words(*arguments), given_words, lambda name: Unknown(name))
    assert isinstance(found, ServiceConfig)
    return found


@pytest.mark.parametrize(
    ("arguments", "overrides", "port"),
    [
        (
            ("-Da=b", "-D", "c=d", "--define", "e=f", "--def=g=h"),
            ["a=b", "c=d", "e=f", "g=h"],
            8080,
        ),
        (("-D=a=b", "--port=81"), ["a=b"], 81),
        (("--p", "82", "--max-wait-time", "1"), [], 82),
    ],
)
def test_arguments(arguments: tuple[str, ...], overrides: list[str], port: int) -> None:
    """As the service's own argparse takes them, starts of long names included."""
    found = service_arguments(words(*arguments))
    assert found.error is None
    assert [word.text for word in found.overrides] == overrides
    assert found.port == port


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--porf", "1"), "error: unrecognized arguments: --porf"),
        (("file.json",), "error: unrecognized arguments: file.json"),
        (("--config",), "error: argument --config: expected one argument"),
        (("--port", "x"), "error: argument --port: invalid int value: 'x'"),
    ],
)
def test_refused_arguments(arguments: tuple[str, ...], error: str) -> None:
    """In argparse's own words."""
    assert service_arguments(words(*arguments)).error == error


@given(
    st.lists(st.text(max_size=20) | st.sampled_from(["-D", "--config", "--port", "-Dprotocol="]))
)
def test_no_words_stop_the_reader(texts: list[str]) -> None:
    """Any command line comes to settings, errors, or a file that cannot be read."""
    found = read_service_config(words(*texts), {}, lambda name: Unknown(name))
    assert isinstance(found, ServiceConfig | Unknown)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEY = st.sampled_from(["", "global_segment_size", "protocol", "client_http_port", "device_name"])


@given(st.dictionaries(KEY | st.sampled_from(["enable_ssd_offload", "x'y"]), VALUES))
def test_no_file_stops_the_reader(given_values: dict[str, object]) -> None:
    """Any JSON object comes to settings or to the service's error."""
    needed = {"local_hostname": "a", "metadata_server": "b", "master_server_address": "c"}
    text = json.dumps({**needed, **given_values})
    found = read_service_config(words("--config=f"), {}, lambda _: text)
    assert isinstance(found, ServiceConfig)
    assert len(found.unknown_keys) == len(given_values.keys() & {"", "x'y"})


@each_row(
    ("value", "read"),
    [
        *((text, True) for text in ("true", " TRUE ", "1", "yes", "on", "enable", True, 1, 0.5)),
        *((text, False) for text in ("", "false", "0", "no", "off", "disable", False, 0, None)),
    ],
)
def test_words_of_a_boolean(value: object, read: bool) -> None:
    assert store_bool(value) is read


@each_row("value", ["2", "enabled", "y", []])
def test_what_is_no_boolean(value: object) -> None:
    with pytest.raises(ValueError, match="boolean"):
        store_bool(value)


FULL = {
    "MOONCAKE_LOCAL_HOSTNAME": "a",
    "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
    "MOONCAKE_MASTER": "b:1",
}


def test_defaults_of_the_service() -> None:
    found = config(**FULL)
    assert found.refused == ()
    assert [found.values[key] for key in ("global_segment_size", "local_buffer_size")] == [
        3355443200,
        1 << 30,
    ]
    assert [found.values[key] for key in ("protocol", "client_http_port")] == ["tcp", 9300]
    switches = ("enable_ssd_offload", "enable_client_http_server")
    assert [found.values[key] for key in switches] == [False, False]


@each_row(
    ("override", "refused"),
    [
        ("global_segment_size=1023", True),
        ("global_segment_size=1024", False),
        ("global_segment_size=0", False),
        ("local_buffer_size=1024gb", False),
        ("local_buffer_size=1099511627777", True),
        ("protocol=tcp", False),
        ("protocol=udp", True),
        ("client_http_port=0", True),
        ("client_http_port=1", False),
        ("client_http_port=65535", False),
        ("client_http_port=65536", True),
    ],
)
def test_bounds_of_what_setup_takes(override: str, refused: bool) -> None:
    found = config("-Denable_client_http_server=true", f"-D{override}", **FULL)
    assert bool(found.refused) is refused, found.refused
