#!/bin/bash
# A first launch on {where}: SGLang with HiCache (L2) and the Mooncake store.
# Its sizes are those that mooncake-preflight fit found for that host. On the host itself:
#   mooncake-preflight check {name}
# The master has to run first, here or on another host: mooncake_master --port 50051
export MOONCAKE_MASTER=127.0.0.1:50051
export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE
export MOONCAKE_PROTOCOL={protocol}
export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment_bytes}
{devices}exec python3 -m sglang.launch_server \
  --model-path {model} --tp {ranks} --host 0.0.0.0 --port 30000 --page-size 64 \
  --enable-hierarchical-cache --hicache-size {l2_gb} --hicache-mem-layout page_first \
  --hicache-io-backend kernel --hicache-write-policy write_through \
  --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout{ib_device}
