#!/bin/bash -l
# SGLang's guide "Multi-Node Inference on SLURM" (docs/references/multi_node_deployment), shortened
#SBATCH -J two-nodes
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=18
#SBATCH --mem=224GB
#SBATCH --gres=gpu:8
#SBATCH --time=12:00:00

if ! source env/bin/activate; then
    echo "no environment" >&2
    exit 1
fi
model=meta-llama/Llama-3.1-405B-Instruct
tp_size=16
HEAD_NODE=$(scontrol show hostname "$SLURM_NODELIST" | head -n 1)
NCCL_INIT_ADDR="${HEAD_NODE}:8000"

srun --ntasks=2 --nodes=2 --output="logs/%x_%j_node$SLURM_NODEID.out" \
    python3 -m sglang.launch_server \
    --model-path "$model" \
    --grammar-backend xgrammar \
    --tp "$tp_size" \
    --dist-init-addr "$NCCL_INIT_ADDR" \
    --nnodes 2 \
    --node-rank "$SLURM_NODEID" &

while ! nc -z "$HEAD_NODE" 30000; do
    sleep 1
done
wait
