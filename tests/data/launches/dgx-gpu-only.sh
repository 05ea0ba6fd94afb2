# Mooncake SSD offload benchmark, DGX A100 server: GPU only
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp 1 \
    --page-size 64 \
    --attention-backend triton
