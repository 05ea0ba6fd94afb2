# SGLang HiCache with Mooncake backend benchmark, H800 server: HiCache L1 + L2
numactl --cpunodebind=0,1 --interleave=0,1 \
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp 8 \
    --page-size 64 \
    --enable-hierarchical-cache \
    --hicache-write-policy write_through \
    --hicache-size 30 # 8*30 = 240GB
