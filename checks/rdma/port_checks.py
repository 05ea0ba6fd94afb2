"""Are the ports that Mooncake opens up, alike, and in the partition that it will ask for?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.c_numbers import leading_integer
from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, command
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.devices import DEVICES
from checks.rdma.facts import DEFAULT_PKEY_INDEX, Nic
from checks.rdma.judging import Scope, judge_devices, judge_uses, nics_of
from checks.rdma.ports import Port
from checks.rdma.problems import Cause, Lost, port_of, port_problem, reach_problem
from checks.rdma.use import Use
from checks.run.facts import Facts

CHECKS = CheckSet()
# config.cpp: the values of MC_MTU, and the default.
MTUS_BYTES = (512, 1024, 2048, 4096)
DEFAULT_MTU_BYTES = 4096
# Partition keys: bit 15 is full membership; the rest is the partition.
FULL_MEMBER = 0x8000


@CHECKS.declare("rdma.port-down", "rdma")
def port_down(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.port-down"

    def problem(nic: Nic, scope: Scope) -> Lost | Unknown | None:
        if scope.names is not None:
            reach = reach_problem(nic)
            if isinstance(reach, Unknown) or (reach and reach.cause is not Cause.PORT):
                return reach
        return port_problem(nic, scope.environment)

    def describe(nic: Nic, lost: Lost | None, scope: Scope) -> Finding:
        ports = () if isinstance(nic.ports, Unknown) else nic.ports
        seen = "; ".join(_state(port) for port in ports) or "no port"
        evidence = tuple(
            Evidence(f"{DEVICES}/{nic.name}/ports/{port.number}/state", _shown(port.state))
            for port in ports
        )
        finding = Finding(check, Status.PASS, nic.name, have=seen, need="ACTIVE", evidence=evidence)
        if lost is None:
            return finding
        advice, settings = _port_remedy(ports, scope.environment.get("MC_IB_PORT", ""))
        text = f"Mooncake leaves {nic.name} out: {lost.why}"
        return finding._replace(text=text, advice=advice, settings=settings)

    return judge_devices(check, facts, needs, (Cause.PORT,), problem, describe)


def _state(port: Port) -> str:
    return f"port {port.number} {_shown(port.state)} ({_shown(port.physical_state)})"


def _shown(fact: str | Unknown) -> str:
    return fact if isinstance(fact, str) else "unknown"


def _port_remedy(ports: tuple[Port, ...], asked: str) -> tuple[str, tuple[Setting, ...]]:
    active = [port.number for port in ports if port.state == "ACTIVE"]
    if active:
        setting = Setting(Kind.ENVIRONMENT, "MC_IB_PORT", str(active[0]), asked)
        return f"set MC_IB_PORT={active[0]}, whose link is up", (setting,)
    netdevs = sorted({name for port in ports for name in _netdevs(port)})
    disabled = [name for name in netdevs if any(p.physical_state == "Disabled" for p in ports)]
    if disabled:
        settings = tuple(
            command("ip", "link", "set", "dev", name, "up", now="down", as_root=True)
            for name in disabled
        )
        return f"bring {', '.join(disabled)} up (on the host)", settings
    return "look at the cable, the switch port and the module, or name the other devices", ()


def _netdevs(port: Port) -> set[str]:
    gids = () if isinstance(port.gids, Unknown) else port.gids
    return {gid.netdev for gid in gids if isinstance(gid.netdev, str) and gid.netdev}


@CHECKS.declare("rdma.port-mtu", "rdma")
def port_mtu(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.port-mtu"
    return judge_uses(check, facts, needs, lambda use, _: [_judge_mtus(check, facts, use)])


def _judge_mtus(check: str, facts: Facts, use: Use) -> Finding:
    asked = leading_integer(use.environment.get("MC_MTU", ""))
    bound = asked if asked in MTUS_BYTES else DEFAULT_MTU_BYTES
    active: dict[str, int] = {}
    for nic in nics_of(facts, use):
        mtu = _active_mtu(nic, port_of(use.environment))
        if isinstance(mtu, Unknown):
            return Finding(check, Status.UNKNOWN, use.who, text=mtu.reason)
        active[nic.name] = mtu
    paths = {name: min(mtu, bound) for name, mtu in active.items()}
    smallest = min(paths.values())
    finding = Finding(
        check,
        Status.PASS,
        use.who,
        have=", ".join(f"{name} {mtu} B" for name, mtu in active.items()),
        need=f"{smallest} B each",
        formula=f"min(active MTU, MC_MTU {bound} B) of each port",
        evidence=tuple(
            Evidence(f"ibv_query_port {name}", f"active_mtu {mtu}") for name, mtu in active.items()
        ),
    )
    if len(set(paths.values())) == 1:
        return finding
    return finding._replace(
        status=Status.WARN,
        text="queue pairs between unequal ports fail with 'local length error' under load",
        advice=f"set MC_MTU={smallest} on all hosts, or give all interfaces the same MTU",
        settings=(
            Setting(Kind.ENVIRONMENT, "MC_MTU", str(smallest), use.environment.get("MC_MTU", "")),
        ),
    )


def _active_mtu(nic: Nic, number: int) -> int | Unknown:
    ports = nic.verbs.ports
    if isinstance(ports, Unknown):
        return ports
    port = ports.get(number)
    return (
        Unknown(f"libibverbs shows no port {number} of {nic.name}")
        if port is None
        else (port.active_mtu_bytes)
    )


@CHECKS.declare("rdma.pkey", "rdma")
def pkey(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.pkey"

    def judge_use(use: Use, _: object) -> list[Finding]:
        return [_judge_pkey(check, nic, use) for nic in nics_of(facts, use)]

    return list(dict.fromkeys(judge_uses(check, facts, needs, judge_use)))


def _judge_pkey(check: str, nic: Nic, use: Use) -> Finding:
    asked = leading_integer(use.environment.get("MC_PKEY_INDEX", ""))
    index = asked if asked is not None and 0 <= asked < 1 << 16 else DEFAULT_PKEY_INDEX
    number = port_of(use.environment)
    finding = Finding(check, Status.PASS, nic.name, need=f"a full member at index {index}")
    port = nic.port(number)
    key = port.pkeys.get(index, Unknown("not read")) if isinstance(port, Port) else Unknown("")
    source = f"{DEVICES}/{nic.name}/ports/{number}/pkeys/{index}"
    now = use.environment.get("MC_PKEY_INDEX", "")
    if isinstance(key, Unknown):
        if not key.absent:
            return finding._replace(status=Status.UNKNOWN, text=key.reason)
        return finding._replace(
            status=Status.FAIL,
            have=f"no key at index {index}",
            evidence=(Evidence(source, "no such file"),),
            text="the first transfer fails with 'Failed to modify QP to INIT'",
            advice="take MC_PKEY_INDEX away, or give an index of the table",
            settings=(Setting(Kind.ENVIRONMENT, "MC_PKEY_INDEX", "", now),) if now else (),
        )
    finding = finding._replace(have=f"{key:#06x}", evidence=(Evidence(source, f"{key:#06x}"),))
    if key & FULL_MEMBER:
        return finding
    return finding._replace(
        status=Status.WARN,
        text="a limited member cannot talk to another one of its partition"
        if key
        else "the key is empty",
        advice="set MC_PKEY_INDEX to a full member's, or ask for full membership",
    )
