"""What is installed: read from trees and from here, and judged."""

from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, Service
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.releases.sglang import sglang_release
from checks.run_checks.runner import every_check, judge
from checks.software.calls import Elf, parts, transports
from checks.software.facts import (
    TRANSPORTS,
    CompiledFile,
    Distribution,
    Environment,
    SoftwareFacts,
    installed_engine,
    read_software,
)
from checks.software.software_checks import pip_install
from preflight.needs.chosen_releases import choose_sglang
from tests.checks.launches import findings
from tests.checks.limit_hosts import facts, launch, rank, rdma, system, tree
from tests.tables import each_row

SITE = "/opt/venv/lib/python3.12/site-packages"
OTHER = "/usr/local/lib/python3.12/dist-packages"
CUDA_12 = f"{SITE}/nvidia/cuda_runtime/lib"
WHEEL = "mooncake_transfer_engine-0.3.13.post1.dist-info"
INSTALLED = {
    f"{SITE}/mooncake/engine.so": "",
    f"{SITE}/{WHEEL}/METADATA": "",
    f"{SITE}/sglang-0.5.23.dist-info/METADATA": "",
    f"{SITE}/torch-2.9.1+cu128.dist-info/METADATA": "",
    f"{CUDA_12}/libcudart.so.12": "",
}
SEARCH: dict[str, Any] = {
    "interpreter": "/opt/venv/bin/python3",
    "folders": ["/usr/lib/python312.zip", "/usr/lib/python3.12", SITE],
    "on_path": {"python3": None, "numactl": "/usr/bin/numactl", "mooncake_master": None},
}
ANSWER = [
    {
        "file": "engine.so",
        "missing": [["libcudart.so.12", "engine.so"]],
        "rpath": ["$ORIGIN", "$ORIGIN/../mooncake_transfer_engine_cuda13.libs"],
    }
]


def read(root: Path) -> SoftwareFacts:
    return read_software(Root(str(root)), None)


def test_a_whole_environment(tmp_path: Path) -> None:
    """Names of folders say it all; the compiled files are asked about once."""
    calls = {"software.search": SEARCH, f"software.libraries {SITE}/mooncake": ANSWER}
    seen = read(tree(tmp_path / "host", INSTALLED, calls))
    engine = seen.engine
    assert isinstance(engine, Environment)
    assert engine.mooncake == (Distribution("mooncake-transfer-engine", "0.3.13.post1", SITE),)
    assert engine.package == f"{SITE}/mooncake"
    assert engine.sglang == Distribution("sglang", "0.5.23", SITE)
    assert engine.torch == Distribution("torch", "2.9.1+cu128", SITE)
    assert engine.cuda == {"libcudart.so.12": CUDA_12}
    missing = (("libcudart.so.12", "engine.so"),)
    assert seen.files == (CompiledFile("engine.so", missing, "mooncake-transfer-engine-cuda13"),)


@pytest.mark.parametrize("answer", [[], {"folders": 3}, {"folders": [3, None]}])
def test_odd_answers_raise_nothing(tmp_path: Path, answer: Any) -> None:
    """A capture may hold anything."""
    seen = read(tree(tmp_path / "host", INSTALLED, {"software.search": answer}))
    assert seen.engine is None or isinstance(seen.engine, Unknown)


@pytest.mark.parametrize("answer", [3, [3], [{"file": "x"}], {"a": 1}])
def test_odd_libraries_are_unknown(tmp_path: Path, answer: Any) -> None:
    """And no file is taken for sound."""
    calls = {"software.search": SEARCH, f"software.libraries {SITE}/mooncake": answer}
    assert isinstance(read(tree(tmp_path / "host", INSTALLED, calls)).files, Unknown)


def test_files_alone_cannot_say_where_modules_are(tmp_path: Path) -> None:
    """A folder tree without the answers of calls."""
    seen = read(tree(tmp_path / "host", INSTALLED))
    assert isinstance(seen.environments, Unknown)
    assert isinstance(seen.programs, Unknown)


def environment(**other: Any) -> Environment:
    fields: dict[str, Any] = {
        "interpreter": "/opt/venv/bin/python3",
        "folders": (SITE,),
        "mooncake": (Distribution("mooncake-transfer-engine", "0.3.13.post1", SITE),),
        "package": f"{SITE}/mooncake",
        "sglang": Distribution("sglang", "0.5.23", SITE),
        "torch": Distribution("torch", "2.9.1", SITE),
        "cuda": {},
    }
    return Environment(**{**fields, **other})


def software(*environments: Environment, **other: Any) -> SoftwareFacts:
    fields: dict[str, Any] = {
        "environments": environments or (environment(),),
        "files": tuple(
            CompiledFile(name, (), "mooncake-transfer-engine")
            for name in ("engine.so", "mooncake_client", "mooncake_master", "store.so")
        ),
        "programs": {"numactl": "/usr/bin/numactl"},
    }
    return SoftwareFacts(**{**fields, **other})


BARE = environment(mooncake=(), package=None, sglang=None)


def found(
    id_: str, needs: LaunchNeeds | None, seen: SoftwareFacts, kind: str = "none", **other: Any
) -> list[Finding]:
    return findings(facts(system_facts=system(kind, **other), software=seen), needs, id_)


def one(id_: str, needs: LaunchNeeds | None, seen: SoftwareFacts, **other: Any) -> Finding:
    (finding,) = found(id_, needs, seen, **other)
    return finding


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (software(), Status.PASS),
        (software(environment(mooncake=())), Status.PASS),
        (software(environment(mooncake=(), package=None)), Status.FAIL),
        # A wheel's record without its files is no Mooncake.
        (software(environment(package=None)), Status.FAIL),
        (software(BARE), Status.UNKNOWN),
        (software(BARE, environment()), Status.PASS),
        (software(environments=Unknown("not recorded")), Status.UNKNOWN),
    ],
)
def test_mooncake_missing(seen: SoftwareFacts, status: Status) -> None:
    """Beside SGLang it must be; where neither is, the engine lives elsewhere."""
    assert one("software.mooncake-missing", launch(rank()), seen).status is status


def test_a_launch_without_mooncake_is_not_asked() -> None:
    """An SGLang without RDMA and without a master may run without it."""
    plain = launch(rank(rdma=None), rank(program="router", rdma=None))
    empty = software(environment(mooncake=(), package=None))
    assert one("software.mooncake-missing", plain, empty).status is Status.SKIP
    master = Service("master", "10.0.0.1", 50051, "", "rank 0", "launch.sh:2", False)
    stored = launch(rank(rdma=None), services=(master,))
    assert one("software.mooncake-missing", stored, empty).status is Status.FAIL
    assert one("software.mooncake-missing", None, empty).status is Status.SKIP


CONTAINER = ContainerLimits("docker run", "docker")


@pytest.mark.parametrize(
    "id_",
    [
        "software.mooncake-missing",
        "software.library-missing",
        "software.version-skew",
        "software.not-built-in",
        "software.numactl-missing",
    ],
)
def test_another_containers_software_is_not_judged(id_: str) -> None:
    """From the host nothing is known of what an image has; inside it is."""
    efa = rank(container=CONTAINER, node=0, transport="efa")
    needs = launch(efa, mooncake_version="0.3.13.post1")
    assert one(id_, needs, software()).status is Status.SKIP
    seen = software(parts=frozenset({"efa"}))
    assert Status.PASS in [finding.status for finding in found(id_, needs, seen, "docker")]


def test_several_wheels_overwrite_each_other() -> None:
    """Flavours install the same folder; which one is on disk the files tell."""
    both = environment(
        mooncake=(
            Distribution("mooncake-transfer-engine", "0.3.13.post1", SITE),
            Distribution("mooncake-transfer-engine-cuda13", "0.3.14", SITE),
        )
    )
    finding = one("software.mooncake-duplicate", None, software(both))
    assert finding.status is Status.WARN
    assert "the files on disk are of mooncake-transfer-engine" in finding.text
    wheels = ("mooncake-transfer-engine", "mooncake-transfer-engine-cuda13")
    assert finding.settings[0].words[3:] == ("uninstall", "--yes", *wheels)
    assert finding.settings[1].words[-1] == "mooncake-transfer-engine==0.3.13.post1"
    assert one("software.mooncake-duplicate", None, software()).status is Status.PASS
    assert one("software.mooncake-duplicate", None, software(BARE)).status is Status.SKIP
    unread = software(environments=Unknown("not recorded"))
    assert one("software.mooncake-duplicate", None, unread).status is Status.UNKNOWN


def test_copies_that_shadow_each_other(tmp_path: Path) -> None:
    """In folders of their own nothing is overwritten: the first on the path is imported."""
    files = {
        f"{OTHER}/{WHEEL}/METADATA": "",
        f"{OTHER}/mooncake/engine.so": "",
        f"{SITE}/mooncake_transfer_engine-0.3.12.dist-info/METADATA": "",
        f"{SITE}/mooncake/engine.so": "",
    }
    search = {**SEARCH, "folders": [OTHER, SITE]}
    seen = read(tree(tmp_path / "two", files, {"software.search": search}))
    (finding,) = found("software.mooncake-duplicate", None, seen)
    assert finding.status is Status.WARN
    assert finding.text == f"an import takes {OTHER}/mooncake, which shadows the others"
    assert "0.3.13.post1 and mooncake-transfer-engine 0.3.12" in finding.have
    # Built from source, in PYTHONPATH.
    files = {**INSTALLED, "/src/build/mooncake/engine.so": ""}
    search = {**SEARCH, "folders": ["/src/build", SITE]}
    seen = read(tree(tmp_path / "built", files, {"software.search": search}))
    (finding,) = found("software.mooncake-duplicate", None, seen)
    assert finding.status is Status.WARN
    assert "/src/build/mooncake, which came with no wheel" in finding.text


@pytest.mark.parametrize(
    ("entry", "version", "note"),
    [
        ("__editable__.sglang-0.5.12.pth", "0.5.12+editable", "sglang-own-build"),
        ("_editable_impl_sglang.pth", "0.5.12+editable", "sglang-own-build"),
        ("__editable__.sglang_router-0.2.pth", "0.5.12", ""),
        ("distutils-precedence.pth", "0.5.12", ""),
    ],
)
def test_an_editable_install_is_no_release(
    tmp_path: Path, entry: str, version: str, note: str
) -> None:
    """Its code has changed since its folder was named; it is taken as the release of that number,
    which is said."""
    files = {f"{SITE}/sglang-0.5.12.dist-info/METADATA": "", f"{SITE}/{entry}": ""}
    root = Root(str(tree(tmp_path / "host", files, {"software.search": SEARCH})))
    engine = read_software(root, None).engine
    assert isinstance(engine, Environment)
    assert engine.sglang == Distribution("sglang", version, SITE)
    installed = installed_engine(root)
    assert installed is not None
    release, shown, notes = choose_sglang(None, installed)
    assert (release, shown.value) == (sglang_release("0.5.12"), version)
    assert [one.id for one in notes] == [note] * bool(note)


def lacking(file: str, library: str) -> tuple[CompiledFile, ...]:
    names = ("engine.so", "mooncake_client", "mooncake_master", "store.so")
    return tuple(
        CompiledFile(name, ((library, name),) if name == file else (), "") for name in names
    )


@each_row(
    ("program", "file", "status"),
    [
        ("sglang", "store.so", Status.FAIL),
        ("sglang", "mooncake_master", Status.PASS),
        ("store_service", "engine.so", Status.PASS),
        ("store_service", "store.so", Status.FAIL),
        ("mooncake_client", "mooncake_client", Status.FAIL),
        ("mooncake_master", "mooncake_master", Status.FAIL),
        ("router", "store.so", Status.SKIP),
    ],
)
def test_each_program_needs_its_own_files(program: str, file: str, status: Status) -> None:
    """A library that only the master lacks does not stop a rank."""
    needs = launch(rank(program=program))
    seen = software(files=lacking(file, "libmlx5.so.1"))
    assert one("software.library-missing", needs, seen).status is status


@pytest.mark.parametrize(
    ("library", "distribution", "setting"),
    [
        ("libmlx5.so.1", "ubuntu", Setting(Kind.PACKAGE, "ibverbs-providers", "installed")),
        ("libmlx5.so.1", "rocky", Setting(Kind.PACKAGE, "libibverbs", "installed")),
        ("libnuma.so.1", "debian", Setting(Kind.PACKAGE, "libnuma1", "installed")),
        ("libcuda.so.1", "ubuntu", None),
        ("libcudart.so.12", "ubuntu", pip_install(environment(), "nvidia-cuda-runtime-cu12")),
    ],
)
def test_who_has_the_library(library: str, distribution: str, setting: Setting | None) -> None:
    """The package of this distribution, or what else brings it."""
    seen = software(files=lacking("store.so", library))
    finding = one("software.library-missing", launch(rank()), seen, distribution=distribution)
    assert finding.status is Status.FAIL
    assert finding.settings == (() if setting is None else (setting,))
    assert f"{library}: cannot open shared object file" in finding.text
    assert finding.advice[0].islower()
    assert not finding.advice.endswith(".")


@pytest.mark.parametrize(
    ("program", "file", "torch", "status"),
    [
        ("sglang", "store.so", True, Status.PASS),
        ("sglang", "store.so", False, Status.FAIL),
        ("store_service", "store.so", True, Status.FAIL),
    ],
)
def test_torch_brings_the_cuda_runtime_to_its_own_process_alone(
    program: str, file: str, torch: bool, status: Status
) -> None:
    """SGLang imports torch first, which loads libcudart from its wheel; the others have none."""
    with_wheel = environment(cuda={"libcudart.so.12": CUDA_12})
    engine = with_wheel if torch else with_wheel._replace(torch=None)
    seen = software(engine, files=lacking(file, "libcudart.so.12"))
    finding = one("software.library-missing", launch(rank(program=program)), seen)
    assert finding.status is status
    if status is Status.FAIL:
        assert finding.settings == (Setting(Kind.ENVIRONMENT, "LD_LIBRARY_PATH", CUDA_12),)


def test_libraries_without_a_launch() -> None:
    """Every file for itself; without Mooncake nothing; unread unknown."""
    seen = software(files=lacking("store.so", "libmlx5.so.1"))
    statuses = [finding.status for finding in found("software.library-missing", None, seen)]
    assert statuses == [Status.PASS, Status.PASS, Status.PASS, Status.FAIL]
    assert one("software.library-missing", None, software(files=None)).status is Status.SKIP
    unread = software(files=Unknown("not recorded"))
    assert one("software.library-missing", launch(rank()), unread).status is Status.UNKNOWN
    nothing = software(files=())
    assert one("software.library-missing", launch(rank()), nothing).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("wanted", "statuses"),
    [
        (("0.3.13.post1", "0.5.23"), [Status.PASS, Status.PASS]),
        (("v0.3.13.post1", "0.5.23+cu128"), [Status.PASS, Status.PASS]),
        (("0.3.14", "0.5.22"), [Status.WARN, Status.WARN]),
        (("0.3.13", ""), [Status.WARN, Status.SKIP]),
    ],
)
def test_version_skew(wanted: tuple[str, str], statuses: list[Status]) -> None:
    """What was sized for is what should run."""
    needs = launch(rank(), mooncake_version=wanted[0], sglang_version=wanted[1])
    seen = found("software.version-skew", needs, software())
    assert [finding.status for finding in seen] == statuses
    elsewhere = found("software.version-skew", needs, software(BARE))
    assert {finding.status for finding in elsewhere} == {Status.SKIP}
    others = launch(mooncake_version=wanted[0], sglang_version=wanted[1])  # no program of theirs
    assert one("software.version-skew", others, software()).status is Status.SKIP


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("0.5.14", Status.FAIL),
        ("0.5.15", Status.WARN),
        ("0.5.23", Status.WARN),
        ("main", Status.UNKNOWN),
    ],
)
def test_numactl(version: str, status: Status) -> None:
    """Up to 0.5.14 SGLang runs it unseen; later it tries first."""
    needs = launch(rank(node=0), sglang_version=version)
    seen = software(programs={"numactl": None})
    assert one("software.numactl-missing", needs, seen).status is status
    assert one("software.numactl-missing", needs, software()).status is Status.PASS


def test_numactl_is_not_needed_by_all() -> None:
    """Unbound ranks and the other way of binding do without."""
    missing = software(programs={"numactl": None})
    switched_off = rank(node=0, environment={"SGLANG_NUMA_BIND_V2": "false"})
    for needs in (launch(rank()), launch(switched_off), None):
        assert one("software.numactl-missing", needs, missing).status is Status.SKIP
    unread = software(programs=Unknown("not recorded"))
    assert one("software.numactl-missing", launch(rank(node=0)), unread).status is Status.UNKNOWN


EFA, TENT = rank(transport="efa", rdma=None), rank(environment={"MC_USE_TENT": "1"})
REDIS = Service("metadata-redis", "10.0.0.1", 6379, "", "rank 0", "launch.sh:2", False)


@each_row(
    ("needs", "parts", "driver", "status"),
    [
        (launch(EFA), frozenset({"efa"}), "efa", Status.PASS),
        (launch(EFA), frozenset(), "efa", Status.FAIL),
        (launch(EFA), frozenset(), "mlx5_core", Status.WARN),
        (launch(EFA), Unknown("not recorded"), "efa", Status.UNKNOWN),
        (launch(TENT), frozenset(), "mlx5_core", Status.PASS),
        (launch(TENT), frozenset({"tent"}), "mlx5_core", Status.PASS),
        (launch(TENT), Unknown("not recorded"), "mlx5_core", Status.UNKNOWN),
        (launch(rank(), services=(REDIS,)), frozenset(), "mlx5_core", Status.FAIL),
        (launch(rank(), services=(REDIS,)), frozenset({"redis"}), "mlx5_core", Status.PASS),
        (launch(rank()), Unknown("not asked"), "mlx5_core", Status.SKIP),
    ],
)
def test_what_only_some_builds_have(
    needs: LaunchNeeds, parts: frozenset[str] | Unknown, driver: str, status: Status
) -> None:
    """A wheel without EFA takes the word and goes by whatever it finds."""
    (check,) = (each for each in every_check() if each.id == "software.not-built-in")
    own = rdma(1)
    assert isinstance(own.nics, tuple)
    nics = tuple(nic._replace(driver=driver) for nic in own.nics)
    host = facts(
        system_facts=system("none"),
        software=software(parts=parts),
        rdma=own._replace(nics=nics, parts=parts),
    )
    (finding,) = judge(host, needs, [check])
    assert finding.status is status


@pytest.mark.parametrize(
    ("wheel", "advised"),
    [
        ("mooncake-transfer-engine", "mooncake-transfer-engine-efa in place"),
        ("mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-efa-cuda13 in place"),
        ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine-efa-non-cuda in place"),
    ],
)
def test_the_wheel_that_has_efa_is_named(wheel: str, advised: str) -> None:
    here = environment(mooncake=(Distribution(wheel, "0.3.13.post1", SITE),))
    finding = one("software.not-built-in", launch(EFA), software(here, parts=frozenset()))
    assert advised in finding.advice


def test_a_transport_that_is_not_built_in_ends_the_store() -> None:
    """Not known for a capture that another launch's parts were recorded for."""
    for name in TRANSPORTS:
        asks = launch(rank(transport=name, rdma=None))
        for built_in, status in (
            (frozenset[str](), Status.FAIL),
            (frozenset({name}), Status.PASS),
            (Unknown("not recorded"), Status.UNKNOWN),
        ):
            seen = software(parts=frozenset(), transports=built_in)
            finding = one("software.not-built-in", asks, seen)
            assert finding.status is status, (name, built_in)
            assert (name in finding.text) is (status is Status.FAIL)
    kept = software(environment(mooncake=(Distribution("mooncake-x", "0.3.13.post1", SITE),)))
    here = kept._replace(transports=frozenset())
    asks = launch(rank(transport="ascend", rdma=None))
    assert "-npu" in one("software.not-built-in", asks, here).advice


def test_transports_are_looked_for_in_a_shared_engine_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel for NPUs has them in libtransfer_engine.so; one that is elsewhere is not read."""
    (tmp_path / "engine.so").write_bytes(b"N8mooncake12CxlTransportE\0")
    shared = tmp_path / "libtransfer_engine.so"
    shared.write_bytes(b"N8mooncake21AscendDirectTransportE\0")
    assert transports(str(tmp_path)) == ["cxl"]
    linked = Elf(62, (shared.name,), (), ())
    monkeypatch.setattr("checks.software.calls.read_elf", lambda path: linked)
    assert transports(str(tmp_path)) == ["ascend", "cxl"]
    shared.unlink()
    with pytest.raises(FileNotFoundError):
        transports(str(tmp_path))


def test_parts_are_read_from_names_in_the_files_and_only_where_asked(tmp_path: Path) -> None:
    package = tmp_path / "mooncake"
    package.mkdir()
    with pytest.raises(OSError, match="no compiled file"):
        parts(str(package))
    (package / "engine.so").write_bytes(b"\x7fELF" + b"N8mooncake12EfaTransportE\0")
    (package / "store.cpython-312-x86_64-linux-gnu.so").write_bytes(b"N8mooncake4tent3OneE\0")
    (package / "mooncake_master").write_bytes(b"RedisStoragePlugin")
    assert parts(str(package)) == ["efa", "tent"]
    (package / "store.so").write_bytes(b"")
    with pytest.raises(OSError, match="empty, or too large"):
        parts(str(package))
    calls = {"software.search": SEARCH, f"software.parts {SITE}/mooncake": ["efa"]}
    root = Root(str(tree(tmp_path / "host", INSTALLED, calls)))
    assert read_software(root, launch(EFA)).parts == frozenset({"efa"})
    assert isinstance(read_software(root, launch(rank())).parts, Unknown)
    assert isinstance(read_software(root, None).parts, Unknown)
