# Mooncake SSD offload benchmark, DGX A100 server: L1 + L2 + Mooncake + SSD; the server is that of L1 + L2 + Mooncake
# Start Mooncake master with offload enabled
mooncake_master \
    -enable_offload=true \
    -http_metadata_server_port=8081 \
    -metrics_port=9004 \
    -logtostderr

# Start Mooncake client with offload enabled (requires root)
# Total Distributed Memory Pool: 80GB
# SSD Offload Buffer: 20GB
MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="/mnt/data/file_storage" \
MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=21474836480 \
MOONCAKE_USE_URING=1 \
mooncake_client \
    --host=127.0.0.1 \
    --global_segment_size=80GB \
    --master_server_address=localhost:50051 \
    --metadata_server=P2PHANDSHAKE \
    --protocol=rdma \
    --device_names=ibp12s0,ibp75s0 \
    --enable_offload=true \
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
