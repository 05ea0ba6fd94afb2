"""Findings about which devices a launch reaches, their ports, and the addresses they speak from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, RdmaUse
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.rdma import capacity_checks, device_checks, fork, gid_checks, reach_checks
from checks.run_checks.facts import Facts
from checks.run_checks.runner import judge
from tests.checks.rdma_hosts import (
    LINK_LOCAL,
    RXE0,
    RXE1,
    RXE2,
    SITE_LOCAL,
    V1,
    V2,
    FakeHost,
    FakeNic,
    closed,
    facts_of,
    found,
    ipv4,
    launch,
    process,
    with_settings,
)
from tests.tables import each_row

FAIL, WARN, PASS, UNKNOWN, SKIP = Status.FAIL, Status.WARN, Status.PASS, Status.UNKNOWN, Status.SKIP
MODULES = (device_checks, reach_checks, gid_checks, capacity_checks, fork)
ALL = {check.id: module.CHECKS for module in MODULES for check in module.CHECKS.problems}
NODES = "/dev/infiniband"
SHARE = "rdma system set netns shared"
NOT_RECORDED = {"unknown": "only the machine itself can tell"}
DOWN = replace(RXE0, state="1: DOWN", physical="3: Disabled")
SHUT = replace(RXE0, node=closed(13, "Permission denied"))
FORBIDDEN = replace(RXE0, node=closed(1, "Operation not permitted"))
GONE = replace(RXE0, node=None)
UNLISTED = replace(RXE0, verbs={"listed": False, "error": "not among the 0 devices that it lists"})
TRAP = replace(RXE0, gids=((LINK_LOCAL, V2), (ipv4("10.0.0.1"), V2), (SITE_LOCAL, V2)))
INFINIBAND = replace(RXE0, layer="InfiniBand", gids=((LINK_LOCAL, V1),), netdev="")
ERDMA = FakeNic("erdma_0", driver="erdma", driver_id=19, node_type="4: RNIC")
MODE = "/sys/module/erdma/parameters/compat_mode"


def statuses(
    check: str, host: FakeHost | Root, needs: LaunchNeeds | None = None
) -> list[tuple[str, Status]]:
    return [(one.subject, one.status) for one in found(check, host, needs)]


def asking(environment: Mapping[str, str] | None = None, *devices: str, **more: Any) -> LaunchNeeds:
    return launch(process(*devices, environment=environment, **more))


def contained(*devices: str, environment: Any = None, **limits: Any) -> LaunchNeeds:
    """Return a launch of a process in a container, by default of Docker."""
    described = ContainerLimits("run.sh:1", limits.pop("runtime", "docker"), **limits)
    return launch(process(*devices, environment=environment)._replace(container=described))


def looking_up(devices: str, own: str) -> LaunchNeeds:
    """Return a launch of these devices in which the program looks its own up as it starts."""
    member = process(*devices.split(","))
    return launch(member._replace(looked_up=RdmaUse(tuple(own.split(",")), "--own")))


def every(host: FakeHost, needs: LaunchNeeds | None = None) -> list[Finding]:
    """Return what all checks say of a host that is read once."""
    facts = Facts({"rdma": facts_of(host, needs)})
    pairs = [pair for module in MODULES for pair in module.CHECKS.problems]
    seen = judge(facts, needs, pairs)
    assert {one.check for one in seen} == set(ALL), "silence would be a pass"
    return seen


def test_a_recording_without_calls_never_passes_what_only_a_machine_knows() -> None:
    """Files alone (as hwloc's recordings are): whether a device opens was not seen."""
    names = ("device_node /dev/infiniband/uverbs0", "verbs rxe0", "kernel", "interfaces")
    calls = {f"rdma.{name}": NOT_RECORDED for name in names}
    elsewhere = ("rdma.cgroup-limit", "rdma.erdma-compat", "rdma.erdma-driver")
    for one in every(FakeHost((RXE0,), calls=calls), asking()):
        if one.check not in (*elsewhere, "rdma.device-missing"):
            assert one.status in (UNKNOWN, SKIP), one.check


@each_row(
    ("check", "host", "needs", "status"),
    [
        ("rdma.device-missing", FakeHost(), asking({}, "rxe0"), PASS),
        ("rdma.device-missing", FakeHost(), asking({}, "mlx5_0"), FAIL),
        ("rdma.device-missing", FakeHost(()), asking({}, "mlx5_0"), FAIL),
        ("rdma.device-missing", FakeHost(), asking({}, "rxe0", "mlx5_0"), WARN),
        ("rdma.device-missing", FakeHost(), asking({"MC_MS_FILTERS": "mlx5_0"}), FAIL),
        ("rdma.device-missing", FakeHost(), asking(), SKIP),
        ("rdma.no-device", FakeHost(), asking(), PASS),
        ("rdma.no-device", FakeHost(()), asking(), FAIL),
        ("rdma.no-device", FakeHost(), asking({"MC_MS_FILTERS": ""}), FAIL),
        ("rdma.no-device", FakeHost(), asking({"MC_TE_FILTERS": "mlx5_0"}), FAIL),
        ("rdma.no-device", FakeHost(), asking({"MC_MS_AUTO_DISC": "0"}), FAIL),
        ("rdma.no-device", FakeHost(), asking({"MC_FORCE_TCP": "0"}), WARN),
        ("rdma.no-device", FakeHost((DOWN,)), asking(), SKIP),
        ("rdma.no-device", FakeHost(), asking({"MC_USE_TENT": "1"}), UNKNOWN),
        ("rdma.uverbs-permission", FakeHost((SHUT,)), asking(), FAIL),
        ("rdma.uverbs-permission", FakeHost((GONE,)), asking(), FAIL),
        ("rdma.uverbs-permission", FakeHost((FORBIDDEN,)), asking(), FAIL),
        ("rdma.uverbs-permission", FakeHost((SHUT,)), None, WARN),
        ("rdma.provider-missing", FakeHost((UNLISTED,)), asking(), FAIL),
        ("rdma.provider-missing", FakeHost((UNLISTED,)), None, WARN),
        ("rdma.provider-missing", FakeHost((SHUT,)), asking(), SKIP),
        ("rdma.node-type", FakeHost((replace(RXE0, node_type="4: RNIC"),)), asking(), FAIL),
        ("rdma.node-type", FakeHost((replace(RXE0, node_type="4: RNIC"),)), None, WARN),
        ("rdma.node-type", FakeHost((replace(RXE0, node_type="7: unspecified"),)), asking(), WARN),
        ("rdma.node-type", FakeHost((replace(RXE0, node_type="?"),)), asking(), UNKNOWN),
        ("rdma.node-type", FakeHost((ERDMA,)), asking(), FAIL),
        ("rdma.node-type", FakeHost((ERDMA,), files={MODE: "N\n"}), asking(), SKIP),
        ("rdma.node-type", FakeHost((ERDMA,), files={MODE: "Y\n"}), asking(), SKIP),
        ("rdma.erdma-compat", FakeHost((ERDMA,), files={MODE: "N\n"}), asking(), FAIL),
        ("rdma.erdma-compat", FakeHost((ERDMA,), files={MODE: "N\n"}), None, WARN),
        ("rdma.erdma-compat", FakeHost((ERDMA,), files={MODE: "Y\n"}), asking(), PASS),
        ("rdma.erdma-compat", FakeHost((ERDMA,)), asking(), SKIP),
        ("rdma.port-down", FakeHost((DOWN,)), asking(), FAIL),
        ("rdma.port-down", FakeHost((DOWN,)), None, WARN),
        ("rdma.port-down", FakeHost((replace(RXE0, state="ACTIVE"),)), asking(), UNKNOWN),
        ("rdma.port-down", FakeHost(), asking({"MC_IB_PORT": "2"}), FAIL),
        ("rdma.port-down", FakeHost((SHUT,)), asking(), SKIP),
        ("rdma.pkey", FakeHost((replace(RXE0, pkeys=("0x7fff",)),)), asking(), WARN),
        ("rdma.pkey", FakeHost((replace(RXE0, pkeys=("0x0000",)),)), asking(), WARN),
        ("rdma.pkey", FakeHost((replace(RXE0, pkeys=("",)),)), asking(), UNKNOWN),
        ("rdma.pkey", FakeHost(), asking({"MC_PKEY_INDEX": "3"}), FAIL),
        ("rdma.gid", FakeHost((TRAP,)), asking(), WARN),
        ("rdma.gid", FakeHost((TRAP,)), None, WARN),
        ("rdma.gid", FakeHost((TRAP,)), asking({"MC_GID_INDEX": "1"}), PASS),
        ("rdma.gid", FakeHost((TRAP,)), asking({"MC_GID_INDEX": "2"}), PASS),
        ("rdma.gid", FakeHost((TRAP,)), asking({"MC_GID_INDEX": "abc"}), WARN),
        ("rdma.gid", FakeHost((TRAP,)), asking({"MC_GID_INDEX": "9"}), FAIL),
        ("rdma.gid", FakeHost((replace(RXE0, gids=(None, None)),)), asking(), FAIL),
        ("rdma.gid", FakeHost((replace(RXE0, gids=((LINK_LOCAL, V2),)),)), asking(), WARN),
        ("rdma.gid", FakeHost((replace(RXE0, gids=((ipv4("10.0.0.1"), V1),)),)), asking(), WARN),
        ("rdma.gid", FakeHost(interfaces={}), asking(), WARN),
        ("rdma.gid", FakeHost(interfaces={"eth0": [["10.9.9.9", 24]]}), asking(), WARN),
        ("rdma.gid", FakeHost(calls={"rdma.interfaces": NOT_RECORDED}), asking(), UNKNOWN),
        ("rdma.gid", FakeHost((replace(RXE0, gids=(("?", V2),)),)), asking(), UNKNOWN),
        ("rdma.gid", FakeHost((INFINIBAND,)), asking(), PASS),
    ],
)
def test_one_device(check: str, host: FakeHost, needs: LaunchNeeds | None, status: Status) -> None:
    assert [one.status for one in found(check, host, needs)] == [status]


LOST = [
    ("rdma.uverbs-permission", SHUT),
    ("rdma.provider-missing", UNLISTED),
    ("rdma.port-down", DOWN),
    ("rdma.gid", replace(RXE0, gids=(None,))),
]


@each_row(("check", "bad"), LOST)
def test_a_lost_device_is_a_warning_while_another_is_left(check: str, bad: FakeNic) -> None:
    """The launch runs, on fewer NICs; which it is for a process that names that one alone."""
    host = FakeHost((bad, RXE1))
    assert statuses(check, host, asking()) == [("rxe0", WARN), ("rxe1", PASS)]
    needs = launch(process(), process("rxe0", name="client"))
    assert statuses(check, host, needs)[0] == ("rxe0", FAIL)
    # Alone, one fault is one failure: the other checks say that they were not asked.
    seen = every(FakeHost((bad,)), asking())
    assert {one.check for one in seen if one.status in (FAIL, WARN, UNKNOWN)} == {check}


@each_row(
    ("host", "kind", "name"),
    [
        (FakeHost((SHUT,)), Kind.DEVICE, "/dev/infiniband/uverbs0"),
        (FakeHost((FORBIDDEN,)), Kind.DEVICE, "/dev/infiniband/uverbs0"),
        (FakeHost((GONE,)), Kind.DEVICE, "/dev/infiniband/uverbs0"),
        (FakeHost((FORBIDDEN,), netns_mode="exclusive"), Kind.COMMAND, SHARE),
    ],
)
def test_what_opens_a_device_depends_on_what_closes_it(
    host: FakeHost, kind: Kind, name: str
) -> None:
    (finding,) = found("rdma.uverbs-permission", host, asking())
    (setting,) = finding.settings
    assert (setting.kind, setting.name) == (kind, name)
    assert setting.wanted == name or " ".join(map(str, setting.words)) == name


def test_a_device_without_a_uverbs_entry_wants_the_module() -> None:
    host = FakeHost((RXE0,)).root("/sys/class/infiniband_verbs/uverbs0/ibdev")
    (finding,) = found("rdma.uverbs-permission", host, asking())
    assert finding.status is FAIL
    assert finding.settings == (Setting(Kind.MODULE, "ib_uverbs", ""),)


@each_row(
    ("check", "nics", "environment"),
    [
        ("rdma.gid", (TRAP,), {}),
        ("rdma.gid", (TRAP,), {"MC_GID_INDEX": "abc"}),
        ("rdma.gid", (TRAP, replace(TRAP, name="rxe9")), {"NCCL_IB_GID_INDEX": "0"}),
        ("rdma.gid", (TRAP,), {"MC_GID_INDEX": "9"}),
        ("rdma.subnets", (RXE0, RXE1), {}),
        ("rdma.subnets", (RXE0, RXE1), {"MC_ENABLE_HCA_PEER_AFFINITY": "1"}),
        ("rdma.port-mtu", (RXE0, replace(RXE1, mtu_bytes=512)), {}),
        ("rdma.port-mtu", (RXE0, replace(RXE1, mtu_bytes=4096)), {"MC_MTU": "9000"}),
        ("rdma.port-down", (RXE0,), {"MC_IB_PORT": "2"}),
        ("rdma.no-device", (RXE0,), {"MC_MS_FILTERS": ""}),
        ("rdma.no-device", (RXE0,), {"MC_TE_FILTERS": "x"}),
        ("rdma.no-device", (RXE0,), {"MC_FORCE_TCP": "0"}),
        ("rdma.no-device", (RXE0,), {"MC_MS_AUTO_DISC": "0"}),
        ("rdma.device-missing", (RXE0,), {"MC_MS_FILTERS": "mlx5_0"}),
        ("rdma.device-missing", (RXE0, RXE1), {"MC_MS_FILTERS": "mlx5_0,rxe1"}),
        ("rdma.pkey", (RXE0,), {"MC_PKEY_INDEX": "3"}),
    ],
)
def test_the_settings_mend_what_they_are_given_for(
    check: str, nics: tuple[FakeNic, ...], environment: dict[str, str]
) -> None:
    """Environment variables only: applied to the same launch, nothing is left to say."""
    host = FakeHost(nics)
    before = found(check, host, asking(environment))
    bad = [one for one in before if one.status in (FAIL, WARN)]
    assert bad
    settings = [setting for one in bad for setting in one.settings]
    assert {setting.kind for setting in settings} == {Kind.ENVIRONMENT}
    for setting in settings:
        assert setting.now == environment.get(setting.name, "")
    changed = with_settings(environment, settings)
    after = found(check, host, asking(changed))
    assert {one.status for one in after} <= {PASS, SKIP}


def test_the_device_auto_is_mended_where_it_is_written() -> None:
    """SGLang writes over MC_MS_FILTERS, so no finding says to set that."""
    environment = {"MC_MS_AUTO_DISC": "1", "MC_MS_FILTERS": "mlx5_bond_0, mlx5_bond_1"}
    environment["MOONCAKE_DEVICE"] = "auto"
    needs = asking(
        environment, "auto", origin="MOONCAKE_DEVICE at x:1", written_as="MOONCAKE_DEVICE"
    )
    (finding,) = found("rdma.device-missing", FakeHost((RXE0,)), needs)
    (setting,) = finding.settings
    assert (finding.status, setting.name, setting.wanted) == (FAIL, "MOONCAKE_DEVICE", "rxe0")
    assert "MC_MS" not in finding.advice


def test_ports_with_ipv6_alone_are_judged_by_release() -> None:
    """None is taken up to 0.3.9, fe80:: up to 0.3.11.post1; an index mends both."""
    routable = replace(RXE0, gids=((LINK_LOCAL, V2), (SITE_LOCAL, V2)))
    rows = {"0.3.9": FAIL, "0.3.10": WARN, "0.3.11.post1": WARN, "0.3.12": PASS}
    for version, status in rows.items():
        needs = launch(process(), version=version)
        (before,) = found("rdma.gid", FakeHost((routable,)), needs)
        assert before.status is status, version
        if status is not PASS:
            (setting,) = before.settings
            assert (setting.name, setting.wanted) == ("MC_GID_INDEX", "1")
            needs = launch(process(environment={"MC_GID_INDEX": "1"}), version=version)
            (after,) = found("rdma.gid", FakeHost((routable,)), needs)
            assert after.status is PASS, version


def test_named_devices_are_set_right_where_they_are_written() -> None:
    def settings(written_as: str, **environment: str) -> tuple[Setting, ...]:
        origin = f"{written_as or '--disaggregation-ib-device.json'} at launch.sh:3"
        needs = launch(
            process("mlx5_0", environment=environment, origin=origin, written_as=written_as)
        )
        (finding,) = found("rdma.device-missing", FakeHost((RXE0, RXE2)), needs)
        return finding.settings

    (flag,) = settings("--disaggregation-ib-device")
    assert (flag.kind, flag.wanted) == (Kind.FLAG, "rxe0,rxe2")
    (variable,) = settings("MOONCAKE_DEVICE", MOONCAKE_DEVICE="mlx5_0")
    assert variable == Setting(Kind.ENVIRONMENT, "MOONCAKE_DEVICE", "rxe0,rxe2", "mlx5_0")
    assert settings("") == ()


def mtus(first: int, second: int) -> tuple[FakeNic, ...]:
    return replace(RXE0, mtu_bytes=first), replace(RXE1, mtu_bytes=second)


@each_row(
    ("check", "nics", "environment", "status"),
    [
        ("subnets", (RXE0,), {}, PASS),
        ("subnets", (RXE0, RXE2), {}, PASS),
        ("subnets", (RXE0, RXE1), {}, WARN),
        ("subnets", (RXE0, RXE1), {"MC_ENABLE_DEST_DEVICE_AFFINITY": "0"}, PASS),
        ("subnets", (TRAP, RXE2), {}, WARN),  # one speaks IPv6, the other IPv4
        ("subnets", (TRAP, RXE2), {"MC_GID_INDEX": "1"}, PASS),
        ("port-mtu", mtus(1024, 1024), {}, PASS),
        ("port-mtu", mtus(1024, 4096), {}, WARN),
        ("port-mtu", mtus(1024, 4096), {"MC_MTU": "1024"}, PASS),
        ("port-mtu", mtus(2048, 4096), {"MC_MTU": "512"}, PASS),
        ("port-mtu", mtus(1024, 4096), {"MC_MTU": "2048"}, WARN),
        ("port-mtu", mtus(1024, 4096), {"MC_MTU": "1500"}, WARN),  # no MTU of InfiniBand: 4096
    ],
)
def test_rails_and_path_mtus(
    check: str, nics: Any, environment: dict[str, str], status: Status
) -> None:
    needs = asking(environment)
    assert statuses(f"rdma.{check}", FakeHost(nics), needs) == [("rank 0", status)]


def test_an_erdma_card_without_a_device_is_one_failure() -> None:
    """Zero devices would be silent TCP; the card says what is missing."""
    card = "/sys/bus/pci/devices/0000:00:07.0"
    host = FakeHost((), files={f"{card}/vendor": "0x1ded\n", f"{card}/device": "0x5007\n"})
    (finding,) = found("rdma.erdma-driver", host, asking())
    assert (finding.status, finding.subject) == (FAIL, "0000:00:07.0")
    assert finding.settings[0].kind is Kind.MODULE
    (left,) = found("rdma.no-device", host, asking())
    assert left.status is SKIP
    driven = replace(host, links={f"{card}/driver": "/sys/bus/pci/drivers/erdma"})
    files = {**host.files, "/sys/bus/pci/drivers/erdma/uevent": ""}
    driven = replace(driven, files=files, nics=(ERDMA,))
    (finding,) = found("rdma.erdma-driver", driven, asking())
    assert finding.status is PASS


@each_row(
    ("library", "packages"),
    [(True, ["ibverbs-providers"]), (False, ["libibverbs1", "ibverbs-providers"])],
)
def test_an_image_without_libibverbs_wants_both_packages(
    library: bool, packages: list[str]
) -> None:
    host = FakeHost((UNLISTED,)).root(*["/usr/lib64/libibverbs.so.1"] * (not library))
    (finding,) = found("rdma.provider-missing", host, asking())
    assert finding.status is FAIL
    assert [setting.name for setting in finding.settings] == packages


@each_row(
    ("devices", "own", "expected"),
    [
        ("rxe0", "rxe0", [PASS]),
        ("rxe0", "rxe1", [PASS, PASS]),
        ("rxe0", "mlx5_0", [PASS, FAIL]),
        ("rxe0,mlx5_0", "rxe0,mlx5_0", [FAIL]),
        ("rxe0,mlx5_0", "rxe0", [WARN, PASS]),
    ],
)
def test_devices_that_sglang_itself_looks_up(
    devices: str, own: str, expected: list[Status]
) -> None:
    """Its own engine may have others than its store, and ends where one of them is missing."""
    host = FakeHost((RXE0, RXE1))
    seen = found("rdma.device-missing", host, looking_up(devices, own))
    assert [one.status for one in seen] == expected


@each_row("store", [("rxe0",), Unknown("$NICS")])
def test_devices_of_which_nobody_knows_the_names(store: tuple[str, ...] | Unknown) -> None:
    """A variable that nobody sets, or a map in a file, is neither a list nor none."""
    member = process("rxe0")._replace(
        rdma=RdmaUse(store, "--device"), looked_up=RdmaUse(Unknown("$NICS"), "--own")
    )
    seen = found("rdma.device-missing", FakeHost((RXE0,)), launch(member))
    assert seen[-1].status is UNKNOWN
    assert "$NICS" in seen[-1].text
    assert not any("defect" in one.text for one in seen)


@each_row(
    ("runtime", "given", "devices", "status", "text"),
    [
        ("docker", (), (), FAIL, "TCP, without a message"),
        ("compose", (), ("rxe0", "rxe1"), FAIL, "ends with an error"),
        ("docker", (f"{NODES}/uverbs0",), (), WARN, f"leaves out what it cannot open: {NODES}"),
        ("docker", (f"{NODES}/uverbs0",), ("rxe0",), PASS, ""),
        ("docker", (NODES,), (), PASS, ""),
        ("docker", ("/dev",), (), PASS, ""),
        ("kubernetes", Unknown("not said"), (), UNKNOWN, "not said"),
    ],
)
def test_a_container_opens_what_the_launch_gives_it_whatever_its_host_opens(
    runtime: str,
    given: tuple[str, ...] | Unknown,
    devices: tuple[str, ...],
    status: Status,
    text: str,
) -> None:
    needs = contained(*devices, runtime=runtime, verbs_nodes=given)
    *here, inside = found("rdma.uverbs-permission", FakeHost((RXE0, RXE1)), needs)
    assert {one.status for one in here} == {PASS}
    assert (inside.subject, inside.status) == ("rank 0", status)
    assert text in inside.text
    assert all(one.described_by == runtime for one in inside.settings)


@each_row(
    ("mode", "network", "status"),
    [
        ("exclusive", "own", FAIL),
        ("exclusive", "host", PASS),
        # A pod, or a network of a plugin: something may move a device into it.
        ("exclusive", "", UNKNOWN),
        # Seen in the guest: queue pairs connect from another namespace.
        ("shared", "own", PASS),
    ],
)
def test_exclusive_devices_are_not_seen_from_a_network_of_its_own(
    mode: str, network: str, status: Status
) -> None:
    networks = {"host_network": network == "host", "own_network": network == "own"}
    needs = contained(verbs_nodes=("/dev",), **networks)
    host = FakeHost((RXE0,), netns_mode=mode)
    findings_ = found("rdma.uverbs-permission", host, needs)
    (inside,) = [one for one in findings_ if one.subject != "rxe0"]
    assert inside.status == status
    assert bool(inside.settings) == (status in (FAIL, UNKNOWN))


def test_efa_devices_are_told_of_the_wheel_that_speaks_with_them() -> None:
    """On those hosts every other device is one of EFA's too: "name the others" is no way out."""
    here = facts_of(FakeHost((RXE0, RXE1)))

    def judged(*drivers: str, check: str = "node-type", names: tuple[str, ...] = ()) -> Finding:
        problem = next(each for each in device_checks.CHECKS.problems if check in each.id)
        pairs = zip(here.present, drivers, strict=True)
        nics = tuple(nic._replace(driver=driver) for nic, driver in pairs)
        needs = asking({}, *names)
        return judge(Facts({"rdma": here._replace(nics=nics)}), needs, [problem])[0]

    alone = judged("efa", "efa")
    assert alone.status is FAIL
    assert "mooncake-transfer-engine-efa" in alone.advice
    assert "0.5.13" in alone.advice
    assert "other devices" not in alone.advice
    assert "other devices" in judged("efa", "mlx5_core").advice
    missing = judged("efa", "efa", check="device-missing", names=("mlx5_0",))
    assert "mooncake-transfer-engine-efa" in missing.advice
    assert "visible" not in missing.advice
    one = judged("efa", "mlx5_core", check="device-missing", names=("mlx5_0",))
    assert one.advice.endswith(": rxe1")


@each_row(
    ("config", "given", "status"),
    [
        ('{"default-runtime": "nvidia"}', (), UNKNOWN),
        ('{"default-runtime": "nvidia"}', ("/dev",), PASS),
        ('{"default-runtime": "runc"}', (), FAIL),
        ("{", (), UNKNOWN),
    ],
)
def test_dockers_default_runtime_may_give_what_the_launch_does_not(
    config: str, given: tuple[str, ...], status: Status
) -> None:
    host = FakeHost((RXE0,), files={"/etc/docker/daemon.json": config})
    *_, inside = found("rdma.uverbs-permission", host, contained(verbs_nodes=given))
    assert inside.status == status


def test_a_subnet_of_version_6_is_the_first_half_of_the_address() -> None:
    (finding,) = found("rdma.subnets", FakeHost((TRAP, RXE2)), asking())
    assert finding.have == "rxe0 fec0:0000:0000:0000::/64, rxe2 10.0.0.0/24"
