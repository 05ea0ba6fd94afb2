#!/usr/bin/env python3
"""Make the host that ships with the program: ``--root demo:h800``.

    tools/write_demo_host.py

Eight H800 and eight ConnectX-7 on two NUMA nodes, as tests/builders/synthetic.py makes it, with
two things wrong: the memlock of a plain login, and a pool of huge pages that is too small. Run it
again when a check reads something new: what a capture does not hold is unknown.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "checks" / "host_snapshot" / "demo" / "h800.tar.gz"
LAUNCH = """\
#!/bin/bash
# Qwen3-32B on one host of eight GPUs, HiCache with Mooncake as its third tier.
export MOONCAKE_MASTER=10.0.0.100:50051
export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE
export MOONCAKE_PROTOCOL=rdma
export MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb
export MOONCAKE_DEVICE=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7
export MC_STORE_USE_HUGEPAGE=1

exec python3 -m sglang.launch_server \\
  --model-path Qwen/Qwen3-32B --tp 8 --host 0.0.0.0 --port 30000 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 30 --hicache-mem-layout page_first \\
  --hicache-io-backend kernel --hicache-write-policy write_through \\
  --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout \\
  --mooncake-ib-device "$MOONCAKE_DEVICE"
"""
# 2 MiB pages per node; the launch takes 75,688.
PAGES_PER_NODE = 60_000


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from preflight.cli.main import run
    from tests.builders.synthetic import MIB, build_host, gpu_host

    host = replace(
        gpu_host(),
        uid=1000,
        capabilities=0,
        memlock=(str(8 * MIB), str(8 * MIB)),
        pools={2 * MIB: PAGES_PER_NODE, 1024 * MIB: 0},
        services={("10.0.0.100", 50051): "master"},
        files={"/etc/sysctl.d/90-mooncake.conf": f"vm.nr_hugepages = {2 * PAGES_PER_NODE}"},
    )
    os.environ.clear()  # a capture holds what its writer's environment says to Mooncake
    DEMO.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("launch.sh").write_text(LAUNCH)
        build_host(Path("host"), host)
        words = ["--root", "host", "--keep-names", str(DEMO), "launch.sh"]
        code = run(["capture", *words])
    DEMO.chmod(0o644)  # a capture is its writer's alone, and this one is everybody's
    return code


if __name__ == "__main__":
    sys.exit(main())
