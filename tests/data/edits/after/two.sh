export MOONCAKE_MASTER=a:1
export MOONCAKE_GLOBAL_SEGMENT_SIZE=700gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size 129 &
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --port 30001 --base-gpu-id 1 --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size 129
