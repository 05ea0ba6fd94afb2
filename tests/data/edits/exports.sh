export MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb MC_MMAP_ARENA_POOL_SIZE=8gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size=30
