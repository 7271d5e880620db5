#!/usr/bin/env bash
# Everything that several GPUs of one host are for, on as many as there are: windows over nccl to real SGLang servers,
# the whole system in its roles, the same GPUs synchronously, trainer ranks, splits.
# usage: run.sh OUT [PART ...]    parts: window ranks system sync split; all of them by default
#        PART_ARGS="KEY=VALUE ..." adds settings to every training run, GPUS=N uses the first N devices
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(window ranks system sync split)
python=${PYTHON:-python3}
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | wc -l)}
# PyTorch's and NCCL's use of NVLink multicast can take a shared host's GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
read -r -a extra <<<"${PART_ARGS:-}"

say() { printf '\n=== %s, %s GPUs (%s)\n' "$*" "$gpus" "$(date +%T)"; }

if [ "$gpus" -lt 2 ]; then
    echo "needs two CUDA devices, found $gpus: benchmarks/one_gpu is for one." >&2
    exit 1
fi

# Servers + trainer ranks + servers of the test role.
case $gpus in
2) split="1 1 0" kind=tiny ;;
3) split="1 1 1" kind=tiny ;;
[4-7]) split="2 1 1" kind=tiny ;;
*) split="5 2 1" kind=wide ;;
esac

train() { # NAME KIND ALLOCATION TEST_GPUS SETTING...: one training run of the whole system
    local name=$1 kind=$2 allocation=$3 test_gpus=$4
    shift 4
    local test=(test_rollout.enabled=false)
    [ "$test_gpus" = 0 ] || test=("test_rollout.n_gpus=$test_gpus")
    say "$name: $allocation"
    WORK_DIR="${WORK_DIR:-$out}/$name" "$here/../one_gpu/run.sh" "$kind" "$out/$name" \
        "allocation_mode=$allocation" "cluster.n_gpus_per_node=$gpus" "${test[@]}" "$@" "${extra[@]}" ||
        echo "$name failed with $?" | tee -a "$out/failed"
}

roles() { # NAME SERVERS RANKS TEST SETTING...
    local name=$1 servers=$2 ranks=$3 test=$4
    shift 4
    train "$name" "$kind" "sglang[rollout]:d$servers+fsdp[actor]:d$ranks" "$test" "cluster.n_inference_servers=$servers" "$@"
}

for part in "${parts[@]}"; do
    case $part in
    window)
        for shape in ${SHAPES_:-2b 8b}; do
            say "window $shape"
            "$python" "$here/../trainer/window.py" "$out/window-$shape" --shape "$shape" --num-servers $((gpus - 1)) ||
                echo "window $shape failed with $?" | tee -a "$out/failed"
        done
        ;;
    ranks)
        say ranks
        ranks="1 2"
        [ "$gpus" -lt 4 ] || ranks="1 2 4"
        # shellcheck disable=SC2086
        "$python" "$here/../trainer/scaling.py" --shape "${RANK_SHAPE:-4b}" --ranks $ranks --json "$out/ranks.json" ||
            echo "ranks failed with $?" | tee -a "$out/failed"
        ;;
    system)
        # shellcheck disable=SC2086
        roles system $split
        ;;
    sync)
        read -r servers ranks _ <<<"$split"
        all=$((servers + ranks))
        # Every GPU holds a server and a rank in turns, so weights travel over gloo.
        train sync "$kind" "sglang[rollout]:d$all|fsdp[actor]:d$all" 0 cluster.n_inference_servers=0
        ;;
    split)
        [ "$gpus" -ge 8 ] || continue
        for servers in 6 5 4; do roles "split-$servers" "$servers" $((8 - servers)) 0; done
        ;;
    *)
        echo "part must be one of window, ranks, system, sync, split, got '$part'." >&2
        exit 2
        ;;
    esac
done

say done
cat "$out"/window-*/window.jsonl 2>/dev/null
[ ! -e "$out/failed" ]
