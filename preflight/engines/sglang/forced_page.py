"""The page size that SGLang itself sets, whatever ``--page-size`` says.

Some models and attention backends take pages of certain sizes alone; which, by release, is in
``checks.releases.sglang``. Source: server_args.py; from 0.5.15 on arg_groups/model_overrides and
``_mla_backend_page_constraints`` of arg_groups/overrides.py; CUDA's branches. What SGLang chooses
by the GPU where no backend is named (trtllm_mla or trtllm_mha on Blackwell) is not read here.
"""

from checks.framework.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.engines.sglang.model_geometry import OwnPools
from preflight.engines.sglang.pool_request import GpuKind, Hardware
from preflight.engines.sglang.server import SglangServer

_BACKENDS = ("attention_backend", "decode_attention_backend")
# Of these the backend of prefill alone counts too.
_OF_PREFILL = ("trtllm_mha", "cutedsl_mla", "hpc_ops")
# Where both are allowed, a page of another size becomes one of 64.
_PREFERRED_TOKENS = 64


def with_forced_page(
    server: SglangServer, hardware: Hardware, release: SglangRelease
) -> SglangServer:
    """Return the server with the page size that it runs with, and why if that is not as written."""
    written = server.arguments.settings["page_size"]
    device = server.value("device") if "device" in server.arguments.settings else None
    if device not in (None, "cuda") or hardware.gpu is GpuKind.AMD:
        return server  # the branches of other makers are not read
    forced_by = _by_model(written.value, server, hardware, release)
    page, why = forced_by if forced_by[1] else _by_backend(written.value, server, release)
    if not why:
        return server
    asked = f"{written.origin}, " if written.given else ""
    forced = written._replace(value=page, origin=f"{asked}set by SGLang for {why}")
    settings = {**server.arguments.settings, "page_size": forced}
    return server._replace(arguments=server.arguments._replace(settings=settings))


def _by_model(
    written: object, server: SglangServer, hardware: Hardware, release: SglangRelease
) -> tuple[int, str]:
    """Return the page that the model forces and its name, or (0, "")."""
    geometry = hardware.geometry
    if isinstance(geometry, OwnPools):
        name = geometry.architecture
        forced = (tokens for family, tokens in release.model_pages if name.startswith(family))
        if tokens := next(forced, 0):
            return tokens, name
        default = (tokens for family, tokens in release.default_pages if name.startswith(family))
        unset = all(
            server.value(each) is None for each in (*_BACKENDS, "prefill_attention_backend")
        )
        tokens = next(default, 0) if written is None and unset else 0
        return tokens, name if tokens else ""
    if isinstance(geometry, Unknown) or not geometry.index_layers or not release.sparse_page:
        return 0, ""
    return release.sparse_page * geometry.index_pool, "sparse attention"


def _by_backend(
    written: object, server: SglangServer, release: SglangRelease
) -> tuple[int | Unknown, str]:
    """Return the page that the attention backend forces and its name, or (0, "")."""
    values = {name: server.value(name) for name in (*_BACKENDS, "prefill_attention_backend")}
    for name, backend in values.items():
        if isinstance(backend, Unknown):
            if written == _PREFERRED_TOKENS:
                continue
            return backend.of("the page size follows from the attention backend: "), "its backend"
        allowed = release.backend_pages.get(backend, ())
        if name not in _BACKENDS and backend not in _OF_PREFILL:
            continue
        if allowed and written not in allowed and not isinstance(written, Unknown):
            page = _PREFERRED_TOKENS if _PREFERRED_TOKENS in allowed else allowed[0]
            return page, f"--{name.replace('_', '-')} {backend}"
    return 0, ""
