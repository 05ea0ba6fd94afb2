"""A job of srt-slurm: the servers of its ``backend``, as many as its ``resources`` say.

Source: github.com/NVIDIA/srt-slurm ``docs/config.md`` (``backend.sglang_config``, whose keys are
SGLang's own flags for each kind of worker, and ``<kind>_environment``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from checks.framework.regex import regex
from checks.host_snapshot.secrets import beginning
from preflight.launches.container import ContainerSettings, Mount, volume
from preflight.launches.documents import Node
from preflight.launches.launch_files import LaunchKind, LaunchText, with_env_files
from preflight.launches.source import Command, Origin, Place, Reading, SourceError, SourceNote, Word
from preflight.launches.variables import Layers

_WORKERS = {"aggregated": "agg", "prefill": "prefill", "decode": "decode"}
# An engine's server, without and with Dynamo.
_PROGRAMS = {
    "sglang": ("sglang.launch_server", "dynamo.sglang"),
    "vllm": ("vllm.entrypoints.openai.api_server", "dynamo.vllm"),
    "trtllm": ("tensorrt_llm.commands.serve", "dynamo.trtllm"),
}
# Where vLLM's workers find what the job writes (srtctl/backends/vllm.py).
_STORE_FILE = "/logs/mooncake_store_config.json"
# The ports that srtctl gives the workers of a node, for HTTP and for a prefill worker's bootstrap
# (srtctl/core/topology.py, NodePortAllocator).
_HTTP_PORT, _HTTP_STRIDE, _BOOTSTRAP_PORT = 6100, 32, 7200
# The master that a job with a store starts on its infra node, which is its first one
# (srtctl/cli/do_sweep.py, srtctl/ports.py).
_MASTER = (
    "mooncake_master --port=8700 --enable_http_metadata_server=true "
    "--http_metadata_server_port=8701 --eviction_high_watermark_ratio=0.9 "
    "--default_kv_lease_ttl=10000 --rpc_thread_num=16 --enable_metric_reporting=true "
    "--metrics_port=8702"
).split()
# What a job starts beside that on its first node, unless its frontend needs neither
# (srtctl/cli/do_sweep.py, srtctl/cli/setup_head.py).
_INFRASTRUCTURE = (
    "/configs/nats-server -js -sd /tmp/nats".split(),
    "/configs/etcd --data-dir /tmp/etcd --listen-client-urls http://0.0.0.0:2379".split(),
)
_WITHOUT_INFRASTRUCTURE = ("trtllm_serve", "vllm")
# Its frontends, one on each further node with nginx in front of them, or one on the first
# (srtctl/cli/mixins/frontend_stage.py, srtctl/ports.py).
_FRONTENDS = {
    "dynamo": "python3 -m dynamo.frontend --http-port={port}",
    "sglang": "python3 -m sglang_router.launch_router --host 0.0.0.0 --port {port}",
}
_NGINX = ["nginx", "-c", "/logs/nginx.conf", "-g", "daemon off;"]
_FRONTEND_PORT, _PORT_BEHIND_NGINX, _MORE_FRONTENDS = 8000, 8180, 9
# An alias of srtslurm.yaml that is the release itself.
_RELEASE = regex(r"v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)")
_PRODUCTS = ("dynamo", "lmcache", "sglang", "vllm")
_OF_NODE = regex(r"\{(node|node_id)\}")
# More workers than any job has.
_MOST_WORKERS = 1024


def _read(launch: LaunchText) -> Reading:
    """Return the commands of the jobs: workers, store, and the services beside them.

    Raises:
        SourceError: For a file with variants of a job.
    """
    if _has_variants(launch):
        raise SourceError(f"{launch.path} has variants of a job: give one of them as a job alone")
    variables, env_notes = with_env_files(launch)
    notes = [*env_notes]
    commands: list[Command] = []
    for called, job in _jobs(launch):
        of_job = len(commands)  # where the commands of this job begin
        if (script := job.at("setup_script")).text:
            shown = beginning(script.text, 80)
            message = f"{shown} runs in front of each worker of job {called}: not read"
            notes.append(SourceNote("script-not-read", message, Origin(launch.path, script.line)))
        backend, image = (
            job.at("backend"),
            _named(job, "container", "container", "image").text or "",
        )
        engine = backend.at("type").text or "sglang"
        dynamo = job.at("frontend", "type").text in (None, "dynamo")
        program = _PROGRAMS.get(engine, ("", ""))[dynamo]
        configs, resources = backend.at(f"{engine}_config"), job.at("resources")
        store = backend.at("mooncake_kv_store")
        store_origin = Origin(launch.path, store.line)
        before = 0  # workers of prefill on each of their nodes
        for worker_kind, short in _WORKERS.items():
            tree = configs.at(worker_kind)
            if not tree.fields or not program:
                continue
            # The job's own over that of the kind (srtctl/cli/mixins/worker_stage.py); the job
            # fills in the worker's node.
            of_kind = backend.at(f"{worker_kind}_environment").fields
            worker_variables = {
                name: Word(text, Origin(launch.path, value.line), tuple(_OF_NODE.findall(text)))
                for name, value in {**of_kind, **job.at("environment").fields}.items()
                for text in [value.text or ""]
            }
            origin = Origin(launch.path, tree.line)
            workers = _number(resources.at(f"{short}_workers"))
            shares = resources.at(f"{short}_nodes").text == "0"  # decode, on the nodes of prefill
            nodes = _number(resources.at("prefill_nodes" if shares else f"{short}_nodes"))
            argv = [*_words(program, tree, job, launch.path)]
            if ("sglang" in program or "vllm" in program) and nodes > workers:
                argv += _flag("--nnodes", nodes // workers, Origin(launch.path, resources.line))
            files = {}
            if "sglang" in program:
                worker_variables |= dict(_store_variables(store, launch.path))
                if worker_kind != "aggregated" and "disaggregation-mode" not in _names(tree):
                    argv += _flag("--disaggregation-mode", worker_kind, origin)
            for key, part in store.fields.items():
                if "standalone" in key and part.fields:
                    message = f"what {key} of job {called} starts is not read: give its processes"
                    at = Origin(launch.path, part.line)
                    notes.append(SourceNote("resource-not-read", message, at))
            if "vllm" in program and store.fields:
                worker_variables["MOONCAKE_CONFIG_PATH"] = Word(_STORE_FILE, store_origin)
                files[_STORE_FILE] = Word(_store_file(store.at("store_config")), store_origin)
            worker = Command(
                tuple(argv),
                Layers(variables, worker_variables),
                (),
                origin,
                ContainerSettings(
                    # Enroot's containers have the host's network, /dev and /dev/shm, and no filter
                    # of system calls that matters here (enroot conf/mounts/10-system.fstab).
                    engine="pyxis",
                    image=image,
                    network="host",
                    ipc="host",
                    mounts=tuple(_mounts(job)),
                    releases=_releases(job, engine, image),
                ),
                files=files,
                place=Place("job", (called, "prefill" if shares else worker_kind)),
            )
            beside = -(-workers // nodes)  # of one node
            for number in range(beside):
                ports: list[Word] = []
                if "sglang" in program:
                    place = number + before * shares
                    ports += _flag("--port", _HTTP_PORT + _HTTP_STRIDE * place, origin)
                    if worker_kind == "prefill":
                        flag = "--disaggregation-bootstrap-port"
                        ports += _flag(flag, _BOOTSTRAP_PORT + place, origin)
                # In front of the job's own, which win.
                started = (*worker.words[:3], *ports, *worker.words[3:])
                copies = len(range(number, workers, beside))
                commands.append(worker._replace(words=started, copies=copies))
            before = beside if worker_kind == "prefill" else before
        first = next(iter(commands[of_job:]), None)
        if first is not None and first.container is not None and store.value is not None:
            more = [item.text or "" for item in store.at("master_extra_args").items]
            starts = tuple(Word(word, store_origin) for word in (*_MASTER, *more))
            own_image = store.at("container").text or image
            around = first.container._replace(image=own_image, releases=_releases(job, "", image))
            commands.append(Command(starts, variables, (), store_origin, around, place=first.place))
        if first is not None:
            commands += [*_services(called, job, commands[of_job:], variables, launch.path)]
    return Reading(tuple(commands), tuple(dict.fromkeys(notes)))


def _services(
    name: str, job: Node, workers: Sequence[Command], variables: Mapping[str, Word], path: str
) -> Iterator[Command]:
    """Yield the services beside a job's workers: NATS, etcd, nginx and the frontends.

    Args:
        name: The job's name.
        workers: The job's commands so far.
        path: Of the file.
    """
    first, last = workers[0], workers[-1]
    frontend = job.at("frontend")
    frontend_type = frontend.at("type").text or "dynamo"
    dedicated = job.at("infra", "etcd_nats_dedicated_node").text == "true"
    origin = Origin(path, (frontend if frontend.fields else job).line)

    def started(argv: Sequence[str], place: Place | None, copies: int = 1) -> Command:
        typed = tuple(Word(word, origin) for word in argv)
        around = first.container
        return Command(typed, variables, (), origin, around, place=place, copies=copies)

    for argv in () if frontend_type in _WITHOUT_INFRASTRUCTURE else _INFRASTRUCTURE:
        yield started(argv, Place("job", (name, "infra")) if dedicated else first.place)
    several = frontend.at("enable_multiple_frontends").text != "false"
    nodes = sum(_number(job.at("resources", f"{short}_nodes"), 0) for short in _WORKERS.values())
    additional = frontend.at("num_additional_frontends")
    more = (_number(additional, 0) if additional.text is not None else _MORE_FRONTENDS) + 1
    behind = min(more, nodes - 1) if several and nodes > 1 else 0
    if behind:
        yield started(_NGINX, first.place)
    port = _PORT_BEHIND_NGINX if behind else _FRONTEND_PORT
    if frontend_type in _FRONTENDS:
        answers = _FRONTENDS[frontend_type].format(port=port).split()
        yield started(answers, last.place if behind else first.place, behind or 1)


def _named(job: Node, key: str, *identity: str) -> Node:
    """Return the ``key`` of a job's model.

    For an alias of srtslurm.yaml, which no file here tells, it is what ``identity`` says of the
    same (docs/config.md).
    """
    value = job.at("model", key)
    tree = job.at("identity", *identity)
    return tree if tree.text and not {"/", ":"} & {*(value.text or "")} else value


def _flag(name: str, value: int | str, origin: Origin) -> tuple[Word, Word]:
    return Word(name, origin), Word(str(value), origin)


def _releases(job: Node, engine: str, image: str) -> dict[str, str]:
    """Return product -> release of a job's container, by ``identity``, else by the image's name."""
    products = job.at("identity", "frameworks")
    named = [(engine, image), *((each, products.at(each).text or "") for each in _PRODUCTS)]
    return {each: match[1] for each, text in named if (match := _RELEASE.fullmatch(text))}


def _mounts(job: Node) -> Iterator[Mount]:
    """Yield the mounts of a job's containers (srtctl/core/runtime.py).

    Those of container_mounts with a part that the job fills in, such as ``{node}``, are left out.
    """
    model = job.at("model", "path").text or ""
    if model.startswith("/"):
        yield Mount("/model", source=model)
    for item in job.at("extra_mount").items:
        yield volume(item.text or "")
    for host, path in job.at("container_mounts").fields.items():
        if "{" not in f"{host}{path.text}":  # what the job fills in
            yield Mount(path.text or "", source=host)


def _names(tree: Node) -> set[str]:
    return {name.replace("_", "-") for name in tree.fields}


def _store_variables(store: Node, path: str) -> Iterator[tuple[str, Word]]:
    """Yield the store's variables that a job sets for SGLang's workers, nothing without a store.

    Addresses that only the job knows are unresolved. Source: github.com/NVIDIA/srt-slurm
    ``get_mooncake_worker_env``.
    """
    if not store.fields:
        return
    origin = Origin(path, store.line)
    yield "MOONCAKE_LOCAL_HOSTNAME", Word("$WORKER_IP", origin, ("the address of the worker",))
    for name, value in store.at("env").fields.items():
        yield name, Word(value.text or "", Origin(path, value.line))
    infra_node = ("the address of the infra node",)
    yield "MOONCAKE_MASTER", Word("$INFRA_IP:8700", origin, infra_node)
    metadata = "http://$INFRA_IP:8701/metadata"
    yield "MOONCAKE_TE_META_DATA_SERVER", Word(metadata, origin, infra_node)


def _store_file(store: Node) -> str:
    """Return the text that the job writes to vLLM's store file, without the master's address."""

    def plain(value: Node) -> int | str:
        text = value.text or ""
        if value.yaml_type == "bool":
            return text.lower() == "true"
        return int(text) if value.plain and text.isdecimal() else text

    return json.dumps({name: plain(value) for name, value in store.fields.items()})


def _number(tree: Node, least: int = 1) -> int:
    """Return a count of a job, at least ``least``."""
    return min(max(least, tree.number(least)), _MOST_WORKERS)


def _words(program: str, tree: Node, job: Node, path: str) -> Iterator[Word]:
    """Yield the words of a worker: its program, its model and its flags (the keys of ``tree``)."""
    origin = Origin(path, tree.line)
    yield from (Word(text, origin) for text in ("python3", "-m", program))
    model = _named(job, "path", "model", "repo")
    flag = "--model" if "vllm" in program else "--model-path"
    if not _names(tree) & {"model", "model-path"} and model.text is not None:
        yield Word(flag, Origin(path, model.line))
        yield Word(model.text.removeprefix("hf:"), Origin(path, model.line))
    for name, value in tree.fields.items():
        name = name.replace("_", "-")
        # Where the job mounts its model (srtctl/core/runtime.py).
        mounted = name in ("model", "model-path") and (value.text or "").rstrip("/") == "/model"
        value = model if mounted and model.text is not None else value
        at = Origin(path, value.line)
        switch = value.plain and value.text in ("true", "false")
        if value.value is None or (switch and value.text == "false"):
            continue
        yield Word(f"--{name}", at)
        for item in () if switch else value.items or [value]:
            text = item.text or ""
            yield Word(text.removeprefix("hf:") if item is model else text, at)


def _jobs(launch: LaunchText) -> list[tuple[str, Node]]:
    """Return name and tree of each job in a file; "job" is the name of a job without one."""
    return [
        (document.at("name").text or "job", document)
        for document in launch.documents or ()
        if document.at("resources").fields
        and document.at("backend").fields
        # srtctl takes none without; others have files with the same two keys.
        and document.at("model", "path").value is not None
    ]


def _has_variants(launch: LaunchText) -> bool:
    """Return whether srtctl makes several jobs of a file: of a base, or of a sweep."""
    jobs = launch.documents or ()
    swept = any(job.at("sweep").fields and job.at("backend").fields for job in jobs)
    return swept or any(job.at("base", "backend").fields for job in jobs)


KIND = LaunchKind(
    "a job of srt-slurm, which has resources, backend and model.path",
    lambda launch: bool(_jobs(launch)) or _has_variants(launch),
    _read,
)
