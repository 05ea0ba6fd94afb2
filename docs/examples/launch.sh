#!/bin/bash
# Qwen3-32B on eight GPUs: KV cache in host memory too (L2), and in Mooncake's store.
export MOONCAKE_MASTER=10.0.0.100:50051
export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE
export MOONCAKE_PROTOCOL=rdma
export MOONCAKE_DEVICE=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7
export MOONCAKE_GLOBAL_SEGMENT_SIZE=32gb
export MC_STORE_USE_HUGEPAGE=1

exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-32B --tp 8 --page-size 64 \
  --enable-hierarchical-cache --hicache-size 20 --hicache-mem-layout page_first \
  --hicache-storage-backend mooncake --mooncake-ib-device "$MOONCAKE_DEVICE"
