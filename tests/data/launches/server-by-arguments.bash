#!/usr/bin/env bash
# As start scripts of public repositories have it (start_general_sglang.sh): the model and further
# flags as arguments, as many GPUs as are listed, one server for each half of them
set -euo pipefail
REPO_ROOT="$(cd "$(dirname "$0")/.." && pwd)"
MODEL_PATH="${1:-Qwen/Qwen3-14B}"
[ $# -gt 0 ] && shift
GPUS="${CUDA_VISIBLE_DEVICES:-0,1,2,3}"
IFS=',' read -ra LISTED <<< "$GPUS"
TP="${TP:-${#LISTED[@]}}"
NAME="${MODEL_PATH##*/}"
LOG="${REPO_ROOT}/logs/${NAME%.*}-${GPUS//,/_}.log"
EXTRA=("$@" "${LISTED[@]:1:1}")
case "${TP}" in
  1|2|4|8) ;;
  *) echo "tp ${TP}?" >&2; exit 1 ;;
esac
for i in {0..1}; do
  CUDA_VISIBLE_DEVICES="${LISTED[$((2 * i))]},${LISTED[$((2 * i + 1))]}" \
    python3 -m sglang.launch_server --model-path "${MODEL_PATH}" --served-model-name "${NAME,,}" \
    --tp "$((TP / 2))" --port "$((30000 + i))" > "${LOG/%.log/-$i.log}" 2>&1 &
done
wait
