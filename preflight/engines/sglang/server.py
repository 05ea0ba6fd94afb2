"""One SGLang server of a launch: its arguments as its release reads them, and its store."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from preflight.engines.programs.sglang_arguments import ParsedArguments
from preflight.engines.programs.store_config import StoreConfig
from preflight.launches.source import Command, Word


class SglangServer(NamedTuple):
    """An SGLang server.

    Attributes:
        store: Mooncake's, or None.
        backend: The storage of its host pool or linker, by name.
    """

    command: Command
    arguments: ParsedArguments
    store: StoreConfig | None
    backend: str | Unknown | None = None

    def value(self, name: str) -> Any:
        return self.arguments.value(name)

    def number(self, name: str) -> int | Unknown:
        """Return an argument that is a whole number; 1 if SGLang's default is no number."""
        value = self.value(name)
        return value if isinstance(value, int | Unknown) else 1

    @property
    def hicache(self) -> bool:
        return self.value("enable_hierarchical_cache") is True

    @property
    def links(self) -> bool:
        """Whether the KV cache on the GPU is linked to a store, with no host pool (0.5.20 on)."""
        return self.value("enable_unified_cache_external_linker") is True

    @property
    def mode(self) -> str:
        """null, prefill or decode."""
        mode = self.value("disaggregation_mode")
        return mode if isinstance(mode, str) else "null"

    @property
    def attention_dp(self) -> int | Unknown:
        """The number of data-parallel groups in a tensor-parallel group: 1 without DP attention."""
        if self.value("enable_dp_attention") is True:
            return self.number("dp_size")
        if "attn_dp_size" in self.arguments.settings and self.arguments.given("attn_dp_size"):
            return self.number("attn_dp_size")
        return 1

    @property
    def replicas(self) -> int | Unknown:
        """The number of servers behind one port: --dp-size without DP attention, else 1."""
        groups = self.attention_dp
        if isinstance(groups, Unknown):
            return groups
        return 1 if groups > 1 else self.number("dp_size")

    @property
    def environment(self) -> Mapping[str, Word]:
        return self.command.environment
