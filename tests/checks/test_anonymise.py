"""What a capture says of nobody: names and addresses are replaced, and what they mean stays."""

import ipaddress
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checks.framework.recording import no_answers
from checks.framework.unknown import Unknown
from checks.host_snapshot.anonymise import anonymise, ipv4_replacements, keeps_ipv4
from tests.tables import each_row

PRIVATE = st.one_of(
    st.integers(0x0A000000, 0x0AFFFFFF),
    st.integers(0xAC100000, 0xAC1FFFFF),
    st.integers(0xC0A80000, 0xC0A8FFFF),
    st.integers(0x64400000, 0x647FFFFF),
)
ADDRESSES = st.integers(0, 2**32 - 1)


def replaced(texts: dict[str, str], hosts: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The texts of a capture after replacing, with what else was given."""
    answers = no_answers()
    answers.texts.update(texts)
    answers.calls.update(more.pop("calls", {}))
    found, extras = anonymise(answers, more, hosts, [])
    return {**found.texts, **extras, "calls": found.calls}


def common_bits(a: int, b: int) -> int:
    return 32 - (a ^ b).bit_length()


@given(st.lists(PRIVATE, min_size=2, max_size=8))
def test_private_addresses_share_as_many_leading_bits_as_before(addresses: list[int]) -> None:
    """So a subnet of any length stays one, and two subnets stay two; the range stays too."""
    new = ipv4_replacements(addresses)
    for a in addresses:
        assert ipaddress.IPv4Address(new[a]).is_private == ipaddress.IPv4Address(a).is_private
        assert new[a] & 255 == a & 255
        for b in addresses:
            assert common_bits(new[a], new[b]) == common_bits(a, b)


@given(st.lists(ADDRESSES, max_size=12))
def test_two_addresses_never_become_one(addresses: list[int]) -> None:
    new = ipv4_replacements(addresses)
    assert new.keys() == {address for address in addresses if not keeps_ipv4(address)}
    assert len(set(new.values())) == len(new)


@given(st.lists(ADDRESSES, min_size=1, max_size=6, unique=True))
def test_a_lone_address_tells_nothing_but_its_kind_and_last_octet(addresses: list[int]) -> None:
    first = addresses[0]
    other = first ^ 0x00000100
    if not keeps_ipv4(first) and not keeps_ipv4(other):
        assert ipv4_replacements([first])[first] == ipv4_replacements([other])[other]


@each_row(
    "kept",
    [
        "127.0.0.1", "0.0.0.0", "255.255.255.0", "255.255.240.0", "169.254.169.254", "224.0.0.1",
        "MLNX_OFED_LINUX-24.10-0.7.0.0", "libibverbs.so.1.14.50.0", "535.104.05",
        "6.8.0-31-generic",
        "::1", "::", "ff02::1", "fe80::", "0000:3b:00.0", "12:34:56", "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff", "mlx5_0", "0000:0000:0000:0000:0000:0000:0000:0000",
        "fe80:0000:0000:0000:0000:0000:0000:0000", "localhost", "python3 -m sglang.launch_server",
    ],
)  # fmt: skip
def test_what_says_nothing_of_anybody_stays(kept: str) -> None:
    assert replaced({"/x": f"a {kept} b"})["/x"] == f"a {kept} b"


def test_an_address_is_the_same_in_every_notation() -> None:
    """Text, a GID of 8 groups, and one that is written short."""
    shown = replaced(
        {
            "/sys/class/infiniband/mlx5_0/ports/1/gids/3": (
                "0000:0000:0000:0000:0000:ffff:0a25:0c07\n"
            )
        },
        text="tcp://10.37.12.7:8080 and ::ffff:10.37.12.7",
    )
    (new,) = set(re.findall(r"\d+\.\d+\.\d+\.\d+", shown["text"]))
    assert new != "10.37.12.7"
    number = int(ipaddress.IPv4Address(new))
    gid = shown["/sys/class/infiniband/mlx5_0/ports/1/gids/3"].strip()
    assert gid == f"0000:0000:0000:0000:0000:ffff:{number >> 16:04x}:{number & 0xFFFF:04x}"


def test_a_mac_and_a_guid_are_numbered() -> None:
    mac, guid = "b8:ce:f6:12:34:56", "b8ce:f603:0012:3456"
    shown = replaced(
        {"/mac": f"{mac} {mac.upper()}\n", "/gid": f"fe80:0000:0000:0000:{guid}\n", "/guid": guid}
    )
    assert shown["/mac"] == "02:00:00:00:00:01 02:00:00:00:00:01\n"
    assert shown["/guid"] == "0200:0000:0000:0001"
    assert shown["/gid"] == f"fe80:0000:0000:0000:{shown['/guid']}\n"


@given(st.integers(2**120, 2**128 - 1))
def test_no_address_of_either_length_survives(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if address.is_multicast:
        return
    shown = replaced({"/x": f"[{address}]:1", "/y": address.exploded})
    if address.is_link_local:
        assert shown["/y"].startswith(address.exploded[:19])
        return
    assert address.exploded[:19] not in shown["/y"]
    assert str(address) not in shown["/x"]
    assert ipaddress.IPv6Address(shown["/x"][1:-3]) == ipaddress.IPv6Address(shown["/y"])


def test_names_of_hosts_and_users_are_replaced_everywhere() -> None:
    shown = replaced(
        {
            "/proc/sys/kernel/hostname": "gpu-17.corp.example\n",
            "/etc/hosts": "127.0.0.1 localhost\n10.0.0.1 login.corp.example login\n",
            "/etc/security/limits.conf": "alice hard memlock 64\n@ops soft nofile 9\n* - core 0\n",
            "/proc/self/mounts": "nas-3:/export /data nfs4 rw 0 0\n",
        },
        environment={"MC_X": "/home/alice/m,gpu-17:80,gpu-17-a", "MC_Y": "login.corp.example"},
        calls={"storage.space /home/alice/m": {"owner": "alice"}, "x": Unknown("gpu-17: refused")},
    )
    said = json.dumps({key: str(value) for key, value in shown.items()})
    for name in ("alice", "gpu-17", "corp", "ops", "nas-3", "login"):
        assert name not in said
    assert shown["/proc/sys/kernel/hostname"].strip().startswith("host")
    first, _, domain = shown["/proc/sys/kernel/hostname"].strip().partition(".")
    assert shown["environment"]["MC_X"].split(",")[1] == f"{first}:80"
    assert shown["environment"]["MC_Y"].endswith(f".{domain}")
    (user,) = re.findall(r"/home/(\w+)/m", shown["environment"]["MC_X"])
    assert shown["/etc/security/limits.conf"].startswith(f"{user} hard memlock 64\n@")
    assert shown["calls"][f"storage.space /home/{user}/m"] == {"owner": user}


def test_uuids_are_numbered() -> None:
    uuid = "GPU-8f6ab1c2-0d3e-4f5a-9b8c-7d6e5f4a3b2c"
    shown = replaced({"/x": uuid, "/y": f"/kubepods/pod{uuid[4:].replace('-', '_')}/x"})
    assert shown["/x"] == "GPU-00000000-0000-4000-8000-000000000001"
    assert shown["/y"] == "/kubepods/pod00000000_0000_4000_8000_000000000001/x"


@given(st.lists(st.tuples(st.sampled_from(["/a", "/proc/net/tcp", "/etc/hosts"]), st.text())))
def test_no_content_breaks_it(files: list[tuple[str, str]]) -> None:
    texts = dict(files)
    assert replaced(texts).keys() >= texts.keys()
