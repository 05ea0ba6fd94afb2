export MOONCAKE_MASTER=a:1
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size 30 &
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --port 30001 --base-gpu-id 1 --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size 20
