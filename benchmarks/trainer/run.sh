#!/usr/bin/env bash
# All figures of the trainer on a GPU host: one JSON line each in OUT/figures.jsonl, errors in OUT/log.txt.
#     benchmarks/trainer/run.sh OUT
# With two GPUs the shapes run beside each other, and weights also travel between the GPUs over nccl.
# DEVICE=cpu SHAPES_="tiny tiny" TOKENS=256 runs every part once on a CPU.
set -u
out=$1
mkdir -p "$out"
export PYTHONPATH=packages/awrl-trainer/src:packages/awrl-ppo-loss/src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
read -r large small <<<"${SHAPES_:-4b 2b}"
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)

part() { # LIMIT_S COMMAND...: a part that fails or hangs costs itself only
    local limit=$1
    shift
    timeout -k 5 "$limit" "$@" >>"$out/figures.jsonl" 2>>"$out/log.txt" ||
        echo "{\"failed\": \"$*\", \"exit\": $?}" | tee -a "$out/log.txt"
}

step() { # SHAPE KIND VARIANT...
    local shape=$1 kind=$2
    shift 2
    part "${STEP_LIMIT_S:-260}" "$python" benchmarks/trainer/step.py --shape "$shape" --kind "$kind" \
        --steps "${STEPS:-2}" --tokens "${TOKENS:-16384}" --device "$device" --variants "$@"
}

publish() { # SHAPE ARGUMENT...
    local shape=$1
    shift
    part 100 "$python" benchmarks/trainer/publish.py --shape "$shape" --device "$device" \
        --bucket-mib "${BUCKET_MIB:-256}" "$@"
}

steps() { # SHAPE
    step "$1" text actor_compiled plain actor_compiled_half
    step "$1" image actor_compiled plain
}

if [ "$gpus" -ge 2 ]; then
    for shape in $large $small; do
        device=cuda:0 publish "$shape" --backend nccl --receiver-device cuda:1 --cases overlapped
    done
    CUDA_VISIBLE_DEVICES=0 steps "$large" &
    export CUDA_VISIBLE_DEVICES=1
    steps "$small"
else
    steps "$large"
    steps "$small"
fi
publish "$large" --cases overlapped
publish "$small" --cases overlapped
step "$large" text actor_compiled_cudnn
wait
cat "$out/figures.jsonl"
