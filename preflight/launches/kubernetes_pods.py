"""Where the pods of a Kubernetes object stand: of built-in kinds, and of operators'."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.documents import Node


class Pod(NamedTuple):
    """What one pod of an object is made from.

    Attributes:
        role: The object's name for the pod, outermost first.
        operator_sets: Variables that the operator puts in front of the containers' own; None for
            one whose value is not known.
        open: Whether an operator may set more.
        copies: The number that the object asks for.
    """

    spec: Node
    role: tuple[str, ...] = ()
    operator_sets: Mapping[str, str | None] = {}
    open: bool = False
    copies: int = 1


# Where the pods of the kinds of Kubernetes itself stand.
POD_PATHS: dict[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"),
        ("spec", "template", "spec"),
    ),
}
# Lists that a strategic merge patch merges item by item, and what tells the items apart
# (patchMergeKey in k8s.io/api/core/v1). Any other list is replaced.
_MERGE_KEYS = dict(
    pair.split(":")
    for pair in (
        "containers:name env:name ephemeralContainers:name hostAliases:ip imagePullSecrets:name "
        "initContainers:name ports:containerPort volumeDevices:devicePath volumeMounts:mountPath "
        "volumes:name"
    ).split()
)
# What leader and workers of a group find in their environment: the leader's address, how many pods
# there are, and which one this is.
_LWS = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
_RBG = ("RBG_LWP_LEADER_ADDRESS", "RBG_LWP_GROUP_SIZE", "RBG_LWP_WORKER_INDEX")
# What OME gives a runner: the path of the model that is served, and the GPUs of the engine's pods
# (sgl-project/ome pkg/controller/.../components, pkg/constants).
_OME: dict[str, str | None] = dict.fromkeys(("MODEL_PATH", "PARALLELISM_SIZE"))
# What AIBrix gives every container of a StormService, those of a pod set among it
# (vllm-project/aibrix pkg/controller/roleset/utils.go, podset/podset_controller.go).
_AIBRIX: dict[str, str | None] = dict.fromkeys(
    "STORM_SERVICE_NAME ROLESET_NAME ROLESET_INDEX ROLE_NAME ROLE_TEMPLATE_HASH "
    "ROLE_REPLICA_INDEX PODSET_NAME POD_GROUP_INDEX POD_GROUP_SIZE".split()
)
_ENGINE = regex(r"\bdynamo\.sglang\b")
# How many of a node there are: replicas; AIBrix's podGroupSize, the size of RBG's components and of
# OME's workers, all pods of one replica; the slices of a DisaggregatedSet.
_COUNTS = ("replicas", "podGroupSize", "size", "slices")
# What Dynamo's operator gives each component at /dev/shm (deploy/operator/internal/consts).
_DYNAMO_SHM = "8Gi"
# Patches of a group's template (sgl-project/rbg api/workloads/v1alpha2, and v1alpha1).
_PATCHES = {
    "leader": ("leaderTemplatePatch", "patchLeaderTemplate"),
    "worker": ("workerTemplatePatch", "patchWorkerTemplate"),
}
# Keys of a role below which no pod stands: templates that roles name, containers put into pods.
_APART = ("engineRuntimes", "roleTemplates")


def pods(item: Node) -> Iterator[Pod]:
    """Yield the pods of one object; nothing for a kind of Ray, or one that starts no process."""
    resource = item.at("kind").text or ""
    spec = item.at(*POD_PATHS.get(resource, ("",)))
    if spec.at("containers").items:  # a Job of Volcano has the kind, and not the form
        path = POD_PATHS[resource][:-2]  # less template, spec
        several = item.at(*path, "parallelism" if resource in ("Job", "CronJob") else "replicas")
        yield Pod(spec, copies=several.number())
    elif resource == "LeaderWorkerSet":
        times = item.at("spec", "replicas").number()
        for pod in _leader_worker_set(item.at("spec", "leaderWorkerTemplate")):
            yield pod._replace(copies=times * pod.copies)
    elif resource != "CustomResourceDefinition" and not resource.startswith("Ray"):
        named = [(tree.at("name").text or "", tree) for tree in _roles(item, "roleTemplates")]
        templates = {called: tree.at("template") for called, tree in named}
        shared = item.at("spec", "envs").items or item.at("spec", "env").items  # Dynamo's graphs
        set_by_operator = _AIBRIX if resource in ("StormService", "RoleSet", "PodSet") else {}
        for pod in _walk(item.at("spec"), (), templates):
            pod = pod._replace(operator_sets={**set_by_operator, **pod.operator_sets})
            yield _with_variables(pod, shared) if shared else pod


def not_read(item: Node) -> Iterator[str]:
    """Yield a sentence on each part of an object that starts something and is not read."""
    resource, called = item.at("kind").text or "", item.at("metadata", "name").text or ""
    roles = _roles(item, "roles")
    if any(role.at("engineRuntimes").items for role in roles):
        yield f"what engineRuntimes put into the pods of {resource} {called} is not read"
    if any(role.at("entryTemplate").fields for role in roles):
        yield f"how many workers a role of {resource} {called} has is not read: give its pods"
    if not resource.startswith("Dynamo"):
        return
    spec = item.at("spec")
    for component in (*spec.at("services").fields.values(), *spec.at("components").items, spec):
        failovers = (component.at("failover"), component.at("experimental", "failover"))
        if any(each.value is not None and each.at("enabled").text != "false" for each in failovers):
            yield f"the standby engines of a failover in {resource} {called} are not read"
        if component.at("frontendSidecar").fields:
            yield f"the frontendSidecar of {resource} {called} is not read"
        if "multinode" in component.fields and "dynamo.sglang" not in " ".join(_texts(component)):
            yield f"how the nodes of {resource} {called} share an engine is not read: give its pods"
    if spec.at("experimental", "componentGroups").items:
        yield f"how often the componentGroups of {resource} {called} run is not read"


def _leader_worker_set(template: Node) -> Iterator[Pod]:
    """Yield a leader and, unless the size is 1, workers; a leader without a template has theirs."""
    size = template.at("size").text or "1"
    leader = template.at("leaderTemplate", "spec")
    worker = template.at("workerTemplate", "spec")
    first = _pod_of_group(leader if leader.fields else worker, "leader", _LWS, size)
    yield first._replace(role=(), open=False)
    if size != "1":
        yield _pod_of_group(worker, "worker", _LWS, size)._replace(open=False)


def _pod_of_group(spec: Node, which: str, env_names: tuple[str, ...], size: str) -> Pod:
    """Return the pod of a group's leader or of its workers, with its copies and variables.

    Args:
        which: "leader" or "worker".
        env_names: The variables of the leader's address, of the size and of the pod's index.
        size: The number of pods, the leader among them, as text. The index of a worker is known
            only if the group has one worker.
    """
    others = Node(size).number() - 1
    index = "0" if which == "leader" else "1" if size == "2" else None
    variables = dict(zip(env_names, (None, size, index), strict=True))
    copies = 1 if which == "leader" else max(1, others)
    return Pod(spec, (which,), variables, open=True, copies=copies)


def _roles(item: Node, name: str) -> list[Node]:
    """Return the ``roles`` or ``roleTemplates`` (``name``) of a group or of a set of groups."""
    paths = ((name,), ("template", name), ("groupTemplate", "spec", name))
    return [role for path in paths for role in item.at("spec", *path).items]


def _walk(tree: Node, role: tuple[str, ...], templates: Mapping[str, Node]) -> Iterator[Pod]:
    """Yield the pods at or below a tree, with the copies that the tree asks for.

    Args:
        role: The names of the roles around the tree.
        templates: The pod templates that roles share, by name.
    """
    # Dynamo's nodeCount is the pods of one replica, 2 where it is left out.
    nodes = tree.at("multinode", "nodeCount").number(2 if "multinode" in tree.fields else 1)
    times = math.prod(tree.at(name).number() for name in _COUNTS)
    dynamo = not tree.fields.keys().isdisjoint(("extraPodSpec", "podTemplate"))
    for pod in _below(tree, role, templates):
        made = _component(tree, pod) if dynamo else pod
        made = made._replace(copies=times * made.copies) if times != 1 else made
        yield from _over_nodes(made, nodes) if nodes != 1 else (made,)


def _over_nodes(pod: Pod, nodes: int) -> Iterator[Pod]:
    """Yield the leader and the workers of a Dynamo component that runs on several nodes.

    Dynamo's operator tells SGLang which node each pod is (deploy/operator/internal/dynamo
    backend_sglang.go). The arguments that it gives other engines are not read: their one pod is
    yielded with its copies multiplied by ``nodes``.
    """
    main, *others = pod.spec.at("containers").items or [Node({})]
    argv, args = main.at("command").items, main.at("args").items
    direct = bool(argv) and "python" in (argv[0].text or "")
    if nodes < 2 or not _ENGINE.search(" ".join(_texts(main))):
        yield pod._replace(copies=pod.copies * nodes)
        return
    for which, rank in (("leader", "0"), ("worker", "$(LWS_WORKER_INDEX)")):
        flags = f"--dist-init-addr $(LWS_LEADER_ADDRESS):29500 --nnodes {nodes} --node-rank {rank}"
        flagged_args = [*args, *(Node(word, main.line) for word in flags.split())]
        if not direct:  # the text of a shell
            flagged_args = [
                item._replace(value=_ENGINE.sub(rf"\g<0> {flags}", item.text or "", count=1))
                for item in args
            ]
        first = _with_fields(main, args=Node(flagged_args, main.line))
        spec = _with_fields(pod.spec, containers=Node([first, *others], main.line))
        made = _pod_of_group(spec, which, _LWS, str(nodes))
        yield made._replace(
            role=(*pod.role, which),
            operator_sets={**pod.operator_sets, **made.operator_sets},
            copies=pod.copies * made.copies,
        )


def _texts(tree: Node) -> Iterator[str]:
    """Yield every text below a tree."""
    if tree.text is not None:
        yield tree.text
    for inner in (*tree.fields.values(), *tree.items):
        yield from _texts(inner)


def _component(tree: Node, pod: Pod) -> Pod:
    """Return the pod of a Dynamo component with the component's fields added to its main container
    (``main``, else the first).

    If both set a variable or resources, the pod's are kept.

    /dev/shm is a volume unless the component switches it off. A frontend without a command gets
    ``python3 -m dynamo.frontend``. Source: github.com/ai-dynamo/dynamo ``deploy/operator/api``.
    """
    containers = pod.spec.at("containers").items or [Node({})]
    main = next((each for each in containers if each.at("name").text == "main"), containers[0])
    others = [container for container in containers if container is not main]
    fields = dict(main.fields)
    if (secret := tree.at("envFromSecret").text) is not None:
        source = Node({"secretRef": Node({"name": Node(secret)})}, tree.line)
        fields["envFrom"] = Node([*main.at("envFrom").items, source])
    if tree.at("envs").items:
        fields["env"] = Node([*tree.at("envs").items, *main.at("env").items], tree.line)
    frontend = "frontend" in (tree.at("componentType").text, tree.at("type").text)
    if frontend and not main.at("command").items and not main.at("args").items:
        argv = [Node(word, main.line) for word in ("python3", "-m", "dynamo.frontend")]
        fields["command"] = Node(argv, main.line)
    spec = dict(pod.spec.fields)
    shared = tree.at("sharedMemory")
    size = shared.at("size").text or tree.at("sharedMemorySize").text or _DYNAMO_SHM
    mounts = [
        Node({**mount.fields, "mountPath": mount.at("mountPoint")}, mount.line)
        for mount in tree.at("volumeMounts").items
    ]
    fields["volumeMounts"] = Node([*main.at("volumeMounts").items, *mounts], main.line)
    if size != "0" and shared.at("disabled").text != "true":
        memory = Node({"medium": Node("Memory"), "sizeLimit": Node(size)})
        volume = Node({"name": Node("shared-memory"), "emptyDir": memory})
        mount = Node({"name": Node("shared-memory"), "mountPath": Node("/dev/shm")})
        spec["volumes"] = Node([*pod.spec.at("volumes").items, volume])
        fields["volumeMounts"].items.append(mount)
    if tree.at("resources").fields and not main.at("resources").fields:
        groups = tree.at("resources").fields.items()
        named = {key: _container_resources(each) for key, each in groups}
        fields["resources"] = Node(named, tree.line)
    spec["containers"] = Node([Node(fields, main.line), *others], tree.line)
    return pod._replace(spec=Node(spec, pod.spec.line))


def _container_resources(resources: Node) -> Node:
    """Return resources as a container has them; Dynamo's v1alpha1 keeps GPUs in other fields."""
    fields = dict(resources.fields)
    gpus, gpu_kind = fields.pop("gpu", None), fields.pop("gpuType", Node("nvidia.com/gpu"))
    fields |= fields.pop("custom", Node({})).fields
    return Node(fields | ({gpu_kind.text or "": gpus} if gpus is not None else {}), resources.line)


def _with_variables(pod: Pod, variables: list[Node]) -> Pod:
    """Return a pod with ``variables``, items of ``env``, in front of those of each container."""
    containers = []
    for item in pod.spec.at("containers").items:
        env = Node([*variables, *item.at("env").items], item.line)
        containers.append(_with_fields(item, env=env))
    return pod._replace(spec=_with_fields(pod.spec, containers=Node(containers, pod.spec.line)))


def _with_fields(base: Node, **fields: Node) -> Node:
    return Node({**base.fields, **fields}, base.line)


def _below(tree: Node, role: tuple[str, ...], templates: Mapping[str, Node]) -> Iterator[Pod]:
    """Yield the pods at a tree or below it; whatever has containers is a pod.

    The copies are not yet multiplied by the counts of ``tree`` itself, such as ``replicas``.
    """
    pattern, replaced = tree.at("leaderWorkerPattern"), tree.at("leaderWorkerSet")
    if tree.at("mainContainer").fields:  # Dynamo's extraPodSpec, whose others run beside it
        main = tree.at("mainContainer")
        containers = Node([main, *tree.at("containers").items], main.line)
        yield Pod(_with_fields(tree, containers=containers), role, open=True)
    elif tree.at("leaderWorkerTemplate").fields:  # a role of a DisaggregatedSet
        for pod in _leader_worker_set(tree.at("leaderWorkerTemplate")):
            yield pod._replace(role=(*role, *pod.role))
    elif tree.at("runner").at("image").text is not None:  # OME's runtimes
        runner = tree.at("runner")
        containers = Node([runner, *tree.at("containers").items], runner.line)
        yield Pod(_with_fields(tree, containers=containers), role, _OME, open=True)
    elif tree.at("containers").items:
        yield Pod(tree, role, open=True)
    elif pattern.fields:
        yield from _pods_of_group(_template(pattern, templates), pattern, role, _RBG)
    elif replaced.fields:
        yield from _pods_of_group(_template(tree, templates), replaced, role, _LWS)
    elif tree.at("templateRef").fields:
        yield Pod(_template(tree, templates).at("spec"), role, open=True)
    else:
        for key, inner in tree.fields.items():
            if key not in _APART:
                named = not inner.fields.keys().isdisjoint(("runner", "extraPodSpec")) or any(
                    "runner" in below.fields for below in inner.fields.values()
                )
                yield from _walk(inner, (*role, key) if named else role, templates)
        for inner in tree.items:
            name = inner.at("name").text
            yield from _walk(inner, (*role, name) if name else role, templates)


def _template(tree: Node, templates: Mapping[str, Node]) -> Node:
    """Return a tree's pod template: its ``template``, or the one of ``templates`` that
    ``templateRef`` names, with the patch applied; empty without either.
    """
    reference = tree.at("templateRef")
    if not reference.fields:
        return tree.at("template")
    template = templates.get(reference.at("name").text or "", Node(None))
    patch = reference.at("patch")
    return apply_patch(template, patch if patch.fields else tree.at("templatePatch"))


def _pods_of_group(
    template: Node, group: Node, role: tuple[str, ...], env_names: tuple[str, str, str]
) -> Iterator[Pod]:
    """Yield a group's leader and, unless the size is 1, workers: ``template`` with the patch for
    each.

    Args:
        env_names: The variables of the leader's address, of the size and of the pod's index.
    """
    size = group.at("size").text or "1"
    for which, keys in _PATCHES.items():
        if which == "worker" and size == "1":
            continue
        whole = template
        for key in keys:
            whole = apply_patch(whole, group.at(key))
        yield _pod_of_group(whole.at("spec"), which, env_names, size)._replace(role=(*role, which))


def apply_patch(base: Node, patch: Node, key: str = "") -> Node:
    """Return a pod template with a strategic merge patch, applied as the API machinery does.

    In a merged list the items of the patch come first, and other items keep their order. So a
    variable that a patch adds stands in front of those of the template.

    Args:
        key: The field that holds both, which tells how a list is merged.
    """
    if patch.fields:
        if patch.at("$patch").text == "replace":
            kept = {name: tree for name, tree in patch.fields.items() if name != "$patch"}
            return Node(kept, patch.line)
        fields = dict(base.fields)
        for name, tree in patch.fields.items():
            if tree.value is None:
                fields.pop(name, None)
            else:
                fields[name] = apply_patch(fields.get(name, Node(None)), tree, name)
        return Node(fields, patch.line or base.line)
    if patch.value is None:
        return base
    merge_key = _MERGE_KEYS.get(key)
    if merge_key is None or not patch.items:
        return patch
    return Node(_merged_items(base.items, patch.items, merge_key), patch.line)


def _merged_items(base: list[Node], patch: list[Node], merge_key: str) -> list[Node]:
    """Return two lists merged by the field ``merge_key``, in the API machinery's order."""
    names = [tree.at(merge_key).text for tree in base]
    deleted = {tree.at(merge_key).text for tree in patch if tree.at("$patch").text == "delete"}
    named = [tree for tree in patch if "$patch" not in tree.fields]
    if any(tree.at("$patch").text == "replace" for tree in patch):
        return named
    keyed = [(each, each.at(merge_key).text) for each in named]
    changed = [
        (apply_patch(base[names.index(name)], each) if name in names else each, name)
        for each, name in keyed
    ]
    touched = {name for _, name in keyed} | deleted
    left = [(tree, name) for tree, name in zip(base, names, strict=True) if name not in touched]
    nodes: list[Node] = []
    while left and changed:
        other = changed[0][1]
        first = other in names and names.index(left[0][1]) < names.index(other)
        nodes.append((left if first else changed).pop(0)[0])
    return nodes + [tree for tree, _ in (*left, *changed)]
