export MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE=751620325376
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size=129
