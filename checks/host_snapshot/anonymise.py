"""Names and addresses in what was recorded of a host, and what stands in their places.

Replaced: host and user names, IPv4 and IPv6 addresses, MAC addresses, GUIDs, GIDs and UUIDs. Kept:
loopback, link-local and multicast prefixes, masks, which range a private address is of, which
addresses share a subnet, and that a GID belongs to an address; device names, PCI addresses and
versions. The replacements are numbers in the order of the originals, so nothing can
be computed back, and the same host gives the same capture.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from checks.framework.recording import Answers
from checks.framework.regex import regex
from checks.framework.unknown import Unknown
from checks.host_snapshot.secrets import REMOVED, clean_text

IPV4 = regex(
    r"(?<![\d.vV])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?!\d|\.\d)"
)
# "24.10-0.7.0.0", as OFED names its releases: the second part is no address.
_RELEASE = regex(r"(?:^|[^\d.])\d+\.\d+-$")
# Public addresses are renumbered below this: RFC 2544, for benchmarks.
_PUBLIC = 198 << 24 | 18 << 16
# First bits that say what an address is for, and how many of them stay.
_RANGES = (
    (0x0A000000, 8),  # 10/8
    (0xAC100000, 12),  # 172.16/12
    (0xC0A80000, 16),  # 192.168/16
    (0x64400000, 10),  # 100.64/10, carrier-grade NAT
)
# The last octet stays: it tells networks, hosts and broadcasts apart, and nobody by itself.
_HOST_BITS = 8


def keeps_ipv4(address: int) -> bool:
    """Tell whether an address means the same on every host (loopback, masks), and so is kept."""
    first, second = address >> 24, address >> 16 & 255
    return first in (0, 127) or first >= 224 or (first, second) == (169, 254)


def ipv4_replacements(addresses: Iterable[int]) -> dict[int, int]:
    """Return the replacement of each IPv4 address (all as numbers).

    Addresses that ``keeps_ipv4`` accepts are left out.

    The last octet stays, and addresses of one /24 network stay in one. Two addresses of a private
    range share as many leading bits after replacing as before. A bit in which all known addresses
    agree becomes 0. Public networks are numbered from 198.18.0 on.
    """
    known = sorted(address for address in addresses if not keeps_ipv4(address))
    prefixes = {address >> shift for address in known for shift in range(_HOST_BITS, 32)}
    public = sorted({address >> _HOST_BITS for address in known if _kept_bits(address) == 0})
    replacements: dict[int, int] = {}
    for address in known:
        kept = _kept_bits(address)
        if kept == 0:
            network = (_PUBLIC >> _HOST_BITS) + public.index(address >> _HOST_BITS)
        else:
            network = address >> (32 - kept)
            for shift in range(31 - kept, _HOST_BITS - 1, -1):  # branches that both exist stay
                prefix = address >> shift
                network = network << 1 | (prefix & 1 if (prefix ^ 1 in prefixes) else 0)
        replacements[address] = network << _HOST_BITS | (address & ((1 << _HOST_BITS) - 1))
    return replacements


def _kept_bits(address: int) -> int:
    fits = (bits for start, bits in _RANGES if address >> (32 - bits) == start >> (32 - bits))
    return next(fits, 0)


# Names of users and hosts that say nothing of anybody, and words of this field that must stay.
KEPT_NAMES = frozenset(
    """root nobody daemon bin sys ubuntu debian centos rocky admin user users test build runner
    ec2-user azureuser vagrant docker podman mooncake sglang slurm munge node host linux localhost
    localdomain localhost4 localhost6 local domain default system data home work models model cache
    shared public opt srv app apps python python3 master worker client router server metadata store
    rdma tcp sglang_router launch_server none null host.docker.internal huggingface.co
    ip6-localhost ip6-loopback ip6-localnet ip6-mcastprefix ip6-allnodes ip6-allrouters
    localhost.localdomain""".split()
)
_MAC = regex(r"(?<![\w:-])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:-])")
_GUID = regex(r"(?<![\w:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![\w:])")
_UUID = regex(
    r"(?:(?<![0-9a-fA-F])|(?<=pod))[0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}(?![0-9a-fA-F])"
)
_IPV6 = regex(
    r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?:\d{1,3}\.){3}\d{1,3}|)(?![\w:.])"
)
_HOMES = regex(r"(?:^|(?<=[\s=:\"']))/(?:home|Users|export/home)/([A-Za-z_][\w.-]*)")
_LIMIT_USER = regex(r"^@?([a-z_][\w.-]*)\s+(?:soft|hard|-)\s", re.MULTILINE)
_REMOTE_SOURCE = regex(r"(?:^|\s)([A-Za-z][\w.-]*):/")
_MAIL = regex(r"(?<![\w.+-])([\w.+-]+)@([A-Za-z][\w-]*(?:\.[\w-]+)+)")
_IN_ADDRESS = regex(r"(?<=://)(?:[^/@\s\"']*@)?([A-Za-z][\w.-]*)")
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")


class PrivateNames:
    """Collects private names and addresses with the ``learn`` methods, then replaces them.

    Each has one replacement in all texts. What is learned after the first ``replace`` is not
    replaced.
    """

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        """Begin with private names of hosts and users; short and common names are left out."""
        self._hosts = {name for name in hosts if _is_private(name)}
        self._users = {name for name in users if _is_private(name)}
        self._ipv4: set[int] = set()
        self._macs: set[int] = set()
        self._identifiers: set[int] = set()  # lower halves of IPv6 addresses, and GUIDs
        self._networks: set[int] = set()  # upper halves of global IPv6 addresses
        self._uuids: set[str] = set()
        self._ready = False

    # What there is to replace --------------------------------------------------------------

    def learn_file(self, name: str, text: str) -> None:
        """Collect names of hosts and users from hostname, hosts, limits, mounts and fstab files.

        Args:
            name: The file's absolute path, which tells its form; any other file is ignored.
        """
        hosts: list[str] = [text.strip()] if name in _HOST_FILES else []
        if name == "/etc/hosts":
            rows = (line.partition("#")[0].split()[1:] for line in text.splitlines())
            hosts = [word for row in rows for word in row]
        if "limits" in name:
            self._users |= {user for user in _LIMIT_USER.findall(text) if _is_private(user)}
        if name.endswith(("/mounts", "/mountinfo", "/fstab")):
            hosts = _REMOTE_SOURCE.findall(text)
        for host in filter(_is_private, hosts):
            self._hosts |= {host, *filter(_is_private, [host.partition(".")[0]])}

    def learn(self, text: str) -> None:
        """Collect the users of home folders, and all addresses, GUIDs and UUIDs, from any text."""
        self._users |= {user for user in _HOMES.findall(text) if _is_private(user)}
        _change_addresses(text, self._learn_address)

    def learn_launch(self, text: str) -> None:
        """Collect as ``learn``; also users and hosts of mail addresses, and dotted hosts of
        URLs.
        """
        self.learn(text)
        for user, host in _MAIL.findall(text):
            self._users |= {user} if _is_private(user) else set()
            self._hosts.add(host)
        # Of a name of several parts, the first alone is often a word of its own: api, proxy.
        self._hosts |= {host for host in _IN_ADDRESS.findall(text) if "." in host}

    def _learn_address(self, what: str, text: str) -> str:
        """Collect one address, and return the text that takes its place in ``_change_addresses``.

        That text is a blank, so that no later pattern finds a part of the address again. An IPv4
        address is returned unchanged, and so is a text that proves to be no address.

        Args:
            what: Uuid, mac, guid, ipv6 or ipv4.
        """
        if what == "uuid":
            self._uuids.add(text.lower().replace("_", "-"))
        elif what == "mac":
            self._macs |= {_number(text)} - {0, 2**48 - 1}  # those two are of no device
        elif what == "guid":
            self._identifiers |= {_number(text)} - {0, 1}
        elif what == "ipv4":
            self._ipv4.add(_ipv4(text))
            return text
        elif (address := _ipv6(text)) is None:
            return text
        elif _is_ipv4(address):
            self._ipv4.add(address & 0xFFFFFFFF)
        elif address > 1 and address >> 120 != 0xFF:
            upper, lower = divmod(address, 1 << 64)
            self._networks |= set() if upper >> 54 == 0xFE80 >> 6 else {upper} - {0}
            self._identifiers |= {lower} - {0, 1}
        return " "

    # Replacing ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Choose the replacement of every learned name and address."""
        self._ipv4_of = ipv4_replacements(self._ipv4)
        self._mac_of = _numbered(self._macs, 0x0200_0000_0000)
        self._identifier_of = _numbered(self._identifiers, 0x0200_0000_0000_0000)
        self._network_of = _numbered(self._networks, 0x2001_0DB8 << 32)
        self._uuid_of = {
            known: f"00000000-0000-4000-8000-{number:012x}"
            for number, known in enumerate(sorted(self._uuids), 1)
        }
        replacements = {name: f"user{n}" for n, name in enumerate(sorted(self._users), 1)}
        shorts = sorted({host.partition(".")[0] for host in self._hosts})
        domains = sorted({host.partition(".")[2] for host in self._hosts})
        for host in sorted(self._hosts):
            short, dot, domain = host.partition(".")
            replacements[host] = f"host{shorts.index(short) + 1}"
            if dot:
                replacements[host] += f".domain{domains.index(domain) + 1}.example"
        self._words = replacements
        longest = sorted(replacements, key=lambda word: (-len(word), word))
        pattern = "|".join(re.escape(word) for word in longest)
        self._word = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)") if pattern else None
        self._ready = True

    def replace(self, text: str) -> str:
        """Return ``text`` with every known name and address replaced."""
        if not self._ready:
            self._prepare()
        text = _change_addresses(text, self._replacement)
        return self._word.sub(lambda m: self._words[m[0]], text) if self._word else text

    def _replacement(self, what: str, text: str) -> str:
        """Return the replacement of one address, in the style of ``text``; ``text`` itself if it is
        kept or was not learned.

        Args:
            what: Uuid, mac, guid, ipv6 or ipv4.
        """
        if what == "uuid":
            uuid = self._uuid_of.get(text.lower().replace("_", "-"), text)
            return uuid.replace("-", "_") if "_" in text else uuid
        if what == "mac":
            number = self._mac_of.get(_number(text))
            mac = text if number is None else number.to_bytes(6, "big").hex(":")
            return mac.upper() if text != text.lower() else mac
        if what == "guid":
            number = _number(text)
            return self._identifier_of.get(number, number).to_bytes(8, "big").hex(":", 2)
        if what == "ipv4":
            number = _ipv4(text)
            return ".".join(map(str, self._ipv4_of.get(number, number).to_bytes(4, "big")))
        address = _ipv6(text)
        replaced = address if address is None else self._ipv6_replacement(address)
        if replaced is None or replaced == address:
            return text
        import ipaddress

        if "." in text:  # ::ffff:10.0.0.1
            return text[: text.rindex(":") + 1] + str(ipaddress.IPv4Address(replaced & 0xFFFFFFFF))
        written = ipaddress.IPv6Address(replaced)
        # All 8 groups, as a file of GIDs has them: ``exploded`` ends in an IPv4 address since 3.13.
        return written.packed.hex(":", 2) if len(text) == 39 else written.compressed

    def _ipv6_replacement(self, address: int) -> int:
        """Return the replacement of an IPv6 address; multicast and loopback addresses stay.

        If it contains an IPv4 address (``::ffff:10.0.0.1``), only that part is replaced.
        """
        if address <= 1 or address >> 120 == 0xFF:
            return address
        if _is_ipv4(address):
            number = address & 0xFFFFFFFF
            return address - number + self._ipv4_of.get(number, number)
        upper, lower = divmod(address, 1 << 64)
        if upper >> 54 != 0xFE80 >> 6:  # else link-local
            upper = self._network_of.get(upper, upper)
        return (upper << 64) + self._identifier_of.get(lower, lower)


def _numbered(values: set[int], base: int) -> dict[int, int]:
    return {value: base + number for number, value in enumerate(sorted(values), 1)}


def _change_addresses(text: str, change: Callable[[str, str], str]) -> str:
    """Return ``text`` with each address replaced by ``change(what, address)``.

    what: uuid, mac, guid, ipv6 or ipv4. A release number that looks like an IPv4 address stays.
    """
    for what, pattern in (("uuid", _UUID), ("mac", _MAC), ("guid", _GUID), ("ipv6", _IPV6)):
        text = pattern.sub(lambda m, what=what: change(what, m[0]), text)  # type: ignore[misc]

    def replaced(m: re.Match[str]) -> str:
        before = m.string[max(0, m.start() - 16) : m.start()]
        return m[0] if _RELEASE.search(before) else change("ipv4", m[0])

    return IPV4.sub(replaced, text)


def _number(text: str) -> int:
    """Return ``b8:ce:f6:12:34:56``, or a GUID, as a number."""
    return int(text.replace(":", ""), 16)


def _is_ipv4(address: int) -> bool:
    """Tell whether an IPv6 address stands for an IPv4 address: ``::ffff:10.0.0.1``."""
    return address > 1 and address >> 32 in (0, 0xFFFF)


def _is_private(name: str) -> bool:
    """Return whether a name may be private: short or common words would be replaced everywhere."""
    return len(name) > 2 and name.lower() not in KEPT_NAMES and not IPV4.fullmatch(name)


def _ipv4(text: str) -> int:
    return int.from_bytes(bytes(map(int, text.split("."))), "big")


def _ipv6(text: str) -> int | None:
    """Return an IPv6 address as a number; None if ``text`` is no such address."""
    import ipaddress

    try:
        return int(ipaddress.IPv6Address(text))
    except ValueError:
        return None


def anonymise(
    answers: Answers, extras: Mapping[str, Any], hosts: Iterable[str], users: Iterable[str]
) -> tuple[Answers, dict[str, Any]]:
    """Return the answers and extras of a capture with private names and addresses replaced.

    Args:
        hosts, users: More private names, beside those that the data itself shows.
    """
    names = PrivateNames(hosts, users)
    for name, text in answers.texts.items():
        if not isinstance(text, Unknown):
            names.learn_file(name, text)
    for text in _strings(tuple(answers)):
        names.learn(text)
    for text in _strings(extras):
        names.learn_launch(text)
    return Answers(*(_map(names.replace, each) for each in answers)), _map(names.replace, extras)


def without_secrets(answers: Answers) -> Answers:
    """Return recorded answers without secrets, comment lines of /etc, and GRUB's passwords."""
    texts = {
        name: text if isinstance(text, Unknown) else _settings_alone(name, text)
        for name, text in answers.texts.items()
    }
    return Answers(*(_map(clean_text, part) for part in answers._replace(texts=texts)))


def _settings_alone(name: str, text: str) -> str:
    """Return a file without comments and GRUB's passwords; its lines stay where they are."""
    if name.startswith("/etc/"):
        return _COMMENT.sub("#", text)
    return _MENU_PASSWORD.sub(rf"\g<1> {REMOVED}", text) if name.startswith("/boot/") else text


# Of sysctl.d, limits.d, systemd, fstab, hosts, shells: a line of its own, begun with # or ;.
_COMMENT = regex(r"(?m)^[ \t]*[#;](?!.*mooncake-preflight).*$")
_MENU_PASSWORD = regex(r"(?m)^([ \t]*password(?:_pbkdf2)?[ \t]+\S+)[ \t].*$")


def _strings(value: Any) -> Iterable[str]:
    """Yield every text in plain data, with the keys of mappings and the reasons of Unknowns."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Unknown):
        yield value.reason
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map(change: Callable[[str], str], value: Any) -> Any:
    """Return plain data with ``change`` applied to every text, in keys and Unknowns too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Unknown):
        cause, advice = change(value.cause), change(value.advice)
        why = change(value.reason)
        return Unknown(why, value.absent, cause=cause, advice=advice, code=value.code)
    if isinstance(value, Mapping):
        return {_map(change, key): _map(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map(change, item) for item in value)
    return value
