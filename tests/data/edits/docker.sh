docker run --rm -e MC_MMAP_ARENA_POOL_SIZE=8gb -e MOONCAKE_MASTER=a:1 \
  -e "MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb" sglang python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size "30"
