SIZE=30
TP=2
SEG='4gb'
export MOONCAKE_MASTER=a:1
MOONCAKE_GLOBAL_SEGMENT_SIZE=$SEG python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp ${TP} --enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-size $SIZE
