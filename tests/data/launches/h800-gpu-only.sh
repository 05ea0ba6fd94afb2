# SGLang HiCache with Mooncake backend benchmark, H800 server: GPU only
numactl --cpunodebind=0,1 --interleave=0,1 \
python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --tp 8 \
    --page-size 64
