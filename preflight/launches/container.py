"""What a container is given of its host, in one record for Docker, Compose and Kubernetes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.framework.needs import GivenGpus
from checks.framework.regex import regex
from checks.framework.unknown import REFUSED, Unknown

# Bytes that a launch asks for: None if it asks for none, Unknown if a variable in it is not set.
Size = int | None | Unknown
# A soft and a hard limit, of which -1 is none.
Limits = tuple["int | Unknown", "int | Unknown"]

# What names a GPU among the devices of a container (Container Device Interface).
CDI_GPU = "nvidia.com/gpu="

# What an image starts by itself, its words in front of those of the launch: the ENTRYPOINT of each
# project's own Dockerfile. An image that is made of another keeps its name: x/vllm-openai:v0.11.0.
_ENTRYPOINTS = (
    (regex(r"vllm-openai|vllm/vllm-"), ("vllm", "serve")),
    (regex(r"lmstack-router"), ("vllm-router",)),
    (regex(r"text-generation-inference"), ("text-generation-launcher",)),
)
# The same of images by their last name; but for etcd, Redis, NATS and Mooncake they hold little,
# whatever they are told.
_PROGRAMS = {
    **dict.fromkeys(("redis", "redis-stack-server"), "redis-server"),
    **dict.fromkeys(("node-exporter", "node_exporter"), "node_exporter"),
    **dict.fromkeys(("grafana-oss", "grafana-enterprise"), "grafana"),
    **dict.fromkeys(("opentelemetry-collector", "opentelemetry-collector-contrib"), "otelcol"),
    **dict.fromkeys("alpine busybox debian ubuntu".split(), "sh"),
    "nats": "nats-server",
    "mooncake-master": "mooncake_master",
    "nginx-unprivileged": "nginx",
}
_SAME_NAME = frozenset(
    "alertmanager cadvisor curl dcgm-exporter envoy etcd fluent-bit grafana haproxy nginx "
    "oauth2-proxy prometheus promtail registry traefik".split()
)
# Images that run what they are told by the first word, and their program where it is a flag.
_DEFAULT = frozenset(
    "redis-server nats-server mooncake_master etcd nginx haproxy envoy traefik sh".split()
)
# What is no program's name: an option, a folder, a model's name on a hub (no script's path).
NO_PROGRAM = regex(
    r"|-.*|.*/|(?!s?bin/|scripts/)[\w-][\w.-]*/(?!.*\.(?:sh|bash|py)$)[\w.-]+|/.*/models?/.*"
    r"|/models?/.*",
    re.DOTALL,
)
_DOCKER_SIZE = regex(
    r"\+?(?=\.?\d)(\d{0,18})(?:\.(\d{0,18}))? ?(?:([kmgtp])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII
)
# github.com/docker/go-units ulimit.go.
_ULIMITS = (
    "core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending "
    "stack"
).split()
_LIMIT = regex(r"-1|\d{1,20}", re.ASCII)


_PUBLISHED = regex(
    r"(?:(?P<ip>\[[^]]*\]|[^\[\]:/]*):)?(?P<port>\d{1,5}(?:-\d{1,5})?):"
    r"(?P<target>\d{1,5}(?:-\d{1,5})?)(?P<protocol>/\w+)?",
    re.ASCII,
)


class Published(NamedTuple):
    """A port of the host that an engine binds for a container.

    Attributes:
        address: Of the host, "" for all.
        owner: The service, run or pod whose container it is.
        pod: The pod of Kubernetes, "" for none, whose hostPort it is.
    """

    port: int | Unknown
    address: str
    owner: str
    origin: str
    pod: str = ""

    @property
    def what(self) -> str:
        """Return the noun for such a port in a message."""
        return "hostPort" if self.pod else "published port"


def host_ports(text: str, owner: str, origin: str, known: bool = True) -> Iterator[Published]:
    """Yield the TCP ports of the host that a value such as ``127.0.0.1:8000-8001:8000-8001/tcp``
    publishes.

    Nothing is yielded for UDP, or if the engine chooses the host's port.

    Args:
        known: False if a variable in the text is not set; the one port is then Unknown. Source:
            docs.docker.com/reference/compose-file/services.
    """
    if not known:
        yield Published(Unknown(f"{text} ({origin}) is not known"), "", owner, origin)
        return
    match = _PUBLISHED.fullmatch(text)
    if match is None or match["protocol"] == "/udp":
        return
    address = "" if match["ip"] in (None, "", "0.0.0.0", "[::]") else match["ip"]
    first, _, last = match["port"].partition("-")
    if last and "-" not in match["target"]:
        return  # the engine takes one that is free
    for port in range(int(first), min(int(last or first), int(first) + 1024) + 1):
        yield Published(port, address, owner, origin)


class Mount(NamedTuple):
    """A file system in a container.

    Attributes:
        kind: ``bind`` of a path of the host, ``tmpfs`` (memory), ``volume``, or in Kubernetes
            ``emptyDir`` and ``hugepages``, a hugetlbfs whose page size is in ``source`` (2Mi).
    """

    target: str
    kind: str = "bind"
    source: str = ""
    read_only: bool = False
    size_bytes: Size = None


class ContainerSettings(NamedTuple):
    """The host's resources that a launch gives a container; None or empty if it says nothing.

    Attributes:
        engine: ``docker``, ``podman``, ``nerdctl``, ``compose``, ``kubernetes`` or ``pyxis``, for
            the defaults; "" if the launch shows an image alone.
        ulimits: By name (``memlock`` in bytes).
        devices: Paths of the host, and names of CDI.
        resources: Of Kubernetes device plugins, ``rdma/hca``: ``1``.
        pod_resources: Names of resources that any container of the pod asks for.
        hugepages_bytes: Limit by page size as Kubernetes writes it, ``2Mi``.
        gpus: A count and names together contradict each other, which Docker refuses.
        runtime: The OCI runtime (nvidia).
        releases: Of products, if the launch names those in the image.
        own_users: A user namespace apart from the host's.
        device_rules: Devices besides ``devices``, as ``c 231:* rwm``.
        startup_seconds: Of the startupProbe, or None.
        pids: Most processes and threads, None without a limit.
    """

    engine: str = ""
    image: str = ""
    ipc: str | None = None
    network: str | None = None
    shm_size_bytes: Size = None
    ulimits: Mapping[str, Limits] = {}
    devices: tuple[str, ...] = ()
    resources: Mapping[str, str] = {}
    pod_resources: tuple[str, ...] = ()
    gpus: GivenGpus | Unknown | None = None
    runtime: str | None = None
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    memory_bytes: Size = None
    hugepages_bytes: Mapping[str, int | Unknown] = {}
    user: str | None = None
    releases: Mapping[str, str] = {}
    own_users: bool = False
    device_rules: tuple[str, ...] = ()
    startup_seconds: int | None = None
    pids: Size = None

    def mount_at(self, path: str) -> Mount | None:
        """Return the mount at exactly this path; the last one if there are several."""
        mounts = [mount for mount in self.mounts if mount.target.rstrip("/") == path.rstrip("/")]
        return mounts[-1] if mounts else None


def image_program(image: str, first: str) -> tuple[str, ...]:
    """Return the words of an image's entrypoint; () if they are not known, or if ``first``, the
    launch's first word, names the program in place of the image's default.
    """
    name = re.sub(r"[:@][^/]*$", "", image)
    last = name.rpartition("/")[2]
    alone = last if last in _SAME_NAME else _PROGRAMS.get(last, "")
    argv: tuple[str, ...] = (alone,) if alone else ()
    argv = next((front for pattern, front in _ENTRYPOINTS if pattern.search(name)), argv)
    named = _DEFAULT & {*argv} and first and not first.startswith("-")
    return () if named else argv


def pids_limit(text: str | None) -> Size:
    """Return a pids limit of Docker or Compose; None if nothing limits, as with 0 and -1."""
    if text is None or text in ("0", "-1"):
        return None
    return int(text) if re.fullmatch(r"\d{1,9}", text) else Unknown(f"pids limit {text[:40]!r}")


def docker_size(text: str | None, what: str) -> Size:
    """Return the bytes of a size such as ``32g``, as Docker reads it, in powers of 1024.

    Args:
        what: The name of the size, for the reason of Unknown. Source: github.com/docker/go-units
            ``RAMInBytes``.

    Returns:
        None without a text; Unknown for a text that Docker refuses, such as ``64Gi``.
    """
    if not text:
        return None
    match = _DOCKER_SIZE.fullmatch(text)
    if match is None:
        why = f"{what} is {text!r}, which Docker does not read as a size: write it as 32g"
        return Unknown(why, code=_code_of(text))
    whole, fraction, unit = (group or "" for group in match.groups())
    power = "kmgtp".find(unit.lower()) + 1 if unit else 0
    return (int(whole + fraction) << 10 * power) // int("1" + "0" * len(fraction))


def _code_of(text: str) -> str:
    """Return REFUSED; "" for a text that a variable or a template fills in later."""
    return "" if "$" in text or text.endswith("%") else REFUSED


def ulimits(texts: Iterable[str]) -> dict[str, Limits]:
    """Return name -> soft and hard limit of texts such as ``memlock=-1:-1`` (-1: no limit).

    A single number is both limits; a limit that is no number is Unknown.
    """

    def limit(name: str, text: str) -> int | Unknown:
        if _LIMIT.fullmatch(text):
            return int(text)
        why = f"ulimit {name} is {text!r}, which is not a number: write -1 for no limit"
        return Unknown(why, code=_code_of(text))

    limits_by_name: dict[str, Limits] = {}
    for text in texts:
        name, _, values = text.partition("=")
        soft, _, hard = values.partition(":")
        limits_by_name[name] = limit(name, soft), limit(name, hard or soft)
    return limits_by_name


def refusals(settings: ContainerSettings) -> Iterator[str]:
    """Yield the reasons for which an engine refuses a run: sizes, limits or GPUs that it cannot
    take.

    A value with a variable that is not set is no reason.
    """
    values: list[object] = [settings.shm_size_bytes, settings.memory_bytes]
    values += [mount.size_bytes for mount in settings.mounts if mount.kind == "tmpfs"]
    for name, (soft, hard) in settings.ulimits.items():
        values += [soft, hard]
        if name not in _ULIMITS and "$" not in name:
            yield f"ulimit {name} is not one that a container takes: {', '.join(_ULIMITS)}"
        if isinstance(soft, Unknown) or isinstance(hard, Unknown) or hard == -1:
            continue
        if soft == -1 or soft > hard:
            yield f"ulimit {name} has a soft limit of {soft} above its hard one of {hard}"
    gpus = settings.gpus
    if isinstance(gpus, GivenGpus) and gpus.names and gpus.number is not None:
        yield (
            f"--gpus names GPU {gpus.names[0]} and asks for {gpus.number} GPUs too: quote several "
            "names once more, as in --gpus '\"device=2,3\"'"
        )
    for value in values:
        if isinstance(value, Unknown) and value.code == REFUSED:
            yield value.reason


def gpu_request(text: str) -> GivenGpus | Unknown:
    """Return the GPUs that ``docker run --gpus`` asks for; Unknown if ``text`` has a variable.

    ``all`` gives neither a count nor names. Any other text is a count, ``device=`` and names, or
    both, as a row of CSV: several names stand in quotes. Source: docker/cli ``opts/gpus.go``.
    """
    if "$" in text:
        return Unknown(f"the GPUs {text}")

    count: int | None = None
    names: tuple[str, ...] = ()
    for field in _csv_fields(text):
        key, _, value = field.strip().partition("=")
        number = value if key == "count" else field.strip()
        if key == "device":
            names = _in_cuda_order(value.split(","))
        elif number.isdecimal():
            count = int(number)
    return GivenGpus(count, names)


def named_gpus(names: Sequence[str]) -> GivenGpus | Unknown:
    """Return the GPUs of these names or CDI devices; Unknown if a name has an open variable."""
    if "$" in "".join(names):
        return Unknown(f"the GPUs {','.join(names)}")
    return GivenGpus(None, _in_cuda_order(name.removeprefix(CDI_GPU) for name in names))


def _in_cuda_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of GPUs in CUDA's order: numbers ascending, others as they stand; () for all."""
    parts = [name.strip() for name in names]
    if "all" in parts:
        return ()
    return tuple(sorted(parts, key=int) if all(part.isdecimal() for part in parts) else parts)


def device_path(text: str) -> str:
    """Return the host's path in ``/dev/infiniband/uverbs0:/dev/...:rwm``; a CDI name as it is."""
    return text.partition(":")[0].rstrip("/")


def security_option(text: str) -> str:
    """Return an option as ``seccomp=unconfined``; Docker also takes ``seccomp:unconfined``."""
    return text if "=" in text else text.replace(":", "=", 1)


def volume(text: str) -> Mount:
    """Return the mount of ``docker run -v SOURCE:TARGET:OPTIONS``; a target alone is a volume."""
    source, colon, rest = text.partition(":")
    if not colon:
        return Mount(text, "volume")
    target, _, options = rest.partition(":")
    mount_kind = "bind" if source.startswith(("/", ".", "~", "$")) else "volume"
    return Mount(target, mount_kind, source, "ro" in options.split(","))


def tmpfs(text: str) -> Mount:
    """Return the mount that ``TARGET:size=1g,...`` of ``--tmpfs`` asks for."""
    target, _, options = text.partition(":")
    return mount(f"type=tmpfs,target={target},{options}")


def _csv_fields(text: str) -> list[str]:
    """Return the fields of a value that Docker reads as a line of CSV; line ends are blanks."""
    import csv  # few launches have such a value

    return next(csv.reader([" ".join(text.splitlines())]), [])


def mount(text: str) -> Mount:
    """Return the mount that ``type=bind,source=/a,target=/b`` of ``--mount`` asks for."""
    # Docker takes names in any case.
    pairs = [field.partition("=") for field in _csv_fields(text)]
    fields = {name.lower(): value if equals else "true" for name, equals, value in pairs if name}

    def first(*names: str) -> str | None:
        return next((fields[name] for name in names if name in fields), None)

    target = first("target", "dst", "destination") or ""
    size_bytes = docker_size(first("tmpfs-size", "size"), f"the size of {target}")
    mount_kind, locked = fields.get("type", "volume").lower(), first("readonly", "ro")
    source = first("source", "src") or ""
    return Mount(target, mount_kind, source, locked in ("true", "1"), size_bytes)
