"""What Mooncake makes of its variables: the readers, and the table that they are given.

Expected values are what glibc and libstdc++ return; the lines that 0.3.13.post1 logs for each text
were compared with the table.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.engines.programs.known_variables import known_variables
from preflight.engines.programs.mooncake_variables import (
    CHOICES,
    NUMBERS,
    OFFLOAD_NUMBERS,
    PORT_RANGES,
    PRESENCE,
    RATIOS,
    SWITCHES,
    Reader,
    effect_of,
    read_number,
    read_ratio,
    read_switch,
    takes_word,
    usable_ports,
)
from preflight.engines.programs.store_config import KEYS
from tests.tables import each_row

EVERY_NUMBER = {row.name: row for row in (*NUMBERS, *OFFLOAD_NUMBERS)}


@each_row(
    ("reader", "text", "value", "cut"),
    [
        (Reader.ATOI, "16MB", 16, True),
        (Reader.ATOI, "abc", 0, True),
        (Reader.ATOI, "", 0, True),
        (Reader.ATOI, "\t-3 ", -3, False),
        (Reader.ATOI, "0x10", 0, True),
        (Reader.ATOI, "1_000", 1, True),
        (Reader.ATOI, "4294967297", 1, False),  # strtol's 64 bits, then the low 32
        (Reader.ATOI, "2147483648", -(2**31), False),
        (Reader.ATOI, "99999999999999999999", -1, False),  # saturates, then the low 32
        (Reader.ATOLL, "99999999999999999999", 2**63 - 1, False),
        (Reader.ATOLL, "30s", 30, True),
        (Reader.STOI, "5s", 5, True),
        (Reader.STOI, "s5", None, True),
        (Reader.STOI, "2147483648", None, False),
        (Reader.STOI, "-1", -1, False),
        (Reader.STOULL, "1MB", 1, True),
        (Reader.STOULL, "-1", None, False),
        (Reader.WHOLE, " +7\n", 7, False),
        (Reader.WHOLE, "7s", None, True),
        (Reader.WHOLE, "+-7", None, True),
        (Reader.WHOLE, "", None, True),
        (Reader.STRICT, "+7", None, False),
        (Reader.STRICT, " 7", None, False),
        (Reader.STRICT, "-7", -7, False),
    ],
)
def test_numbers(reader: Reader, text: str, value: int | None, cut: bool) -> None:
    """Each reader, on the texts that tell it from the others."""
    assert read_number(reader, text) == (value, cut)


@given(st.sampled_from(list(Reader)), st.text())
def test_no_text_stops_a_reader(reader: Reader, text: str) -> None:
    """Any text comes to a number of its width, or to none."""
    value = read_number(reader, text).value
    assert value is None or reader in (Reader.WHOLE, Reader.STRICT) or abs(value) <= 2**64


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_plain_number_is_itself(value: int) -> None:
    """To every reader; stoull takes no minus."""
    for reader in Reader:
        if reader is not Reader.STOULL or value >= 0:
            assert read_number(reader, str(value)) == (value, False)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("MC_MTU", 9000, "4096 is used"),
        ("MC_SLICE_SIZE", -1, "read as 18446744073709551615"),
        ("MC_TRANSFER_TIMEOUT", 1, "5 s are taken"),
        ("MC_STORE_CLIENT_SETUP_RETRIES", 0, "setup ends with -1 before the first attempt"),
    ],
)
def test_what_a_number_becomes(name: str, value: int, what: str) -> None:
    """Where it is not taken as it is."""
    row = EVERY_NUMBER[name]
    assert not row.takes(value)
    assert effect_of(row, value) == what


@each_row(
    ("name", "text", "value"),
    [
        ("WITH_NVIDIA_PEERMEM", " Disable ", False),
        ("WITH_NVIDIA_PEERMEM", "n", None),
        ("MC_TCP_ENABLE_CONNECTION_POOL", "off", True),
        ("MC_TCP_ENABLE_CONNECTION_POOL", "NO", False),
        ("MC_PATH_ROUNDROBIN", "yes", False),
        ("MC_TE_METRIC", "on", True),
        ("MC_STORE_LOCAL_HOT_CACHE_USE_SHM", " 1", False),
        ("MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION", "off", True),
    ],
)
def test_switches(name: str, text: str, value: bool | None) -> None:
    """Each has words of its own."""
    row = next(row for row in SWITCHES if row.name == name)
    assert read_switch(row, text) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5", 0.5), ("1", 1.0), ("1.01", None), ("0", None), ("90%", None), ("nan", None)],
)
def test_ratios(text: str, value: float | None) -> None:
    """Shares above 0 and up to 1."""
    assert read_ratio(text) == value


@each_row(
    ("least", "most", "usable"),
    [
        (1024, 32767, True),
        (1023, 2000, False),
        (32767, 32768, False),
        (60999, 61000, False),
        (61000, 65535, True),
        (20000, 19999, False),
        (1024, 65535, True),  # only its ends are looked at
    ],
)
def test_ports(least: int, most: int, usable: bool) -> None:
    """Both ends outside the ephemeral range, in order."""
    assert usable_ports(least, most) is usable


def test_words() -> None:
    """Case counts but for the two that fold it."""
    rows = {row.name: row for row in CHOICES}
    assert takes_word(rows["MC_EFA_NIC_SELECTION"], "Local")
    assert not takes_word(rows["MC_LOG_LEVEL"], "info")


def test_the_table_names_what_mooncake_reads() -> None:
    """Every name once, and known to the check of spelling; three belong to NVIDIA and rdma-core."""
    names = [row.name for table in (SWITCHES, CHOICES, RATIOS) for row in table]
    names += [row.name for row in (*NUMBERS, *OFFLOAD_NUMBERS)]
    names += [name for ports in PORT_RANGES for name in (ports.least, ports.most)]
    names += PRESENCE
    assert len(names) == len(set(names)) > 90
    others = {"WITH_NVIDIA_PEERMEM", "NCCL_IB_GID_INDEX", "RDMAV_HUGEPAGES_SAFE"}
    assert set(names) - known_variables().keys() == others


def test_the_variables_of_the_store_are_known_to_the_check_of_spelling() -> None:
    """MOONCAKE_CLIENT and MOONCAKE_STANDALONE_STORAGE among them, which SGLang's environ.py has."""
    assert {key.variable for key in KEYS.values()} - known_variables().keys() == set()


def test_defaults_are_values_that_are_taken() -> None:
    """A default that is a number lies in its own range, but for the one whose default does not."""
    for row in EVERY_NUMBER.values():
        if row.default.isdecimal() and row.name != "MC_MAX_EP_PER_CTX":
            assert row.takes(int(row.default)), row.name
    for ports in PORT_RANGES:
        assert usable_ports(*ports.default)
