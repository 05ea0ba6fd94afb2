# Mooncake SSD offload benchmark, DGX A100 server: L1 + L2 + Mooncake
# Start Mooncake master
mooncake_master \
    -http_metadata_server_port=8081 \
    -metrics_port=9004 \
    -logtostderr

# Start Mooncake client (requires root)
# Total Distributed Memory Pool: 80GB
mooncake_client \
    --host=127.0.0.1 \
    --global_segment_size=80GB \
    --master_server_address=localhost:50051 \
    --metadata_server=P2PHANDSHAKE \
    --protocol=rdma \
    --device_names=ibp12s0,ibp75s0 \
    --port=50052 \
    --logtostderr

MOONCAKE_MASTER="127.0.0.1:50051" \
MOONCAKE_GLOBAL_SEGMENT_SIZE=0 \
MOONCAKE_PROTOCOL="rdma" \
MOONCAKE_DEVICE="ibp12s0,ibp75s0" \
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp 1 \
    --page-size 64 \
    --attention-backend triton \
    --enable-hierarchical-cache \
    --hicache-ratio 2 \
    --hicache-storage-prefetch-policy wait_complete \
    --hicache-mem-layout page_first_direct \
    --hicache-storage-backend mooncake
