# SGLang HiCache with Mooncake backend benchmark, A10 cluster: GPU only
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp-size 2 \
    --page-size 64
