# SGLang HiCache with Mooncake backend benchmark, A10 cluster: L1 + L2 + Mooncake
MOONCAKE_TE_META_DATA_SERVER="http://127.0.0.1/metadata" \
MOONCAKE_GLOBAL_SEGMENT_SIZE=0 \
MOONCAKE_PROTOCOL="rdma" \
MOONCAKE_DEVICE="$DEVICE_LIST" \
MOONCAKE_MASTER=127.0.0.1:50051 \
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp-size 2 \
    --page-size 64 \
    --enable-hierarchical-cache \
    --hicache-write-policy write_through \
    --hicache-ratio 2 --hicache-size 0 \
    --hicache-storage-prefetch-policy wait_complete \
    --hicache-storage-backend mooncake
