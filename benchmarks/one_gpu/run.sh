#!/usr/bin/env bash
# The whole system on one GPU: real Chromium, real SGLang, FSDP, weights over gloo, test rollout.
# usage: run.sh tiny|wide OUT [KEY=VALUE ...]     see README.md for what it needs and what it prints
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kind=$1
out=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
python=${PYTHON:-python3}
work=${WORK_DIR:-$out}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Kernels that every installation of SGLang has; set SGLANG_ARGS to a space for its own choice.
args=${SGLANG_ARGS:---attention-backend triton --sampling-backend pytorch --grammar-backend none --mm-attention-backend sdpa --disable-cuda-graph --max-total-tokens 65536}

say() { printf '\n== %s (%s)\n' "$*" "$(date +%T)"; }

policy=$work/policy-$kind
if [ ! -e "$policy/config.json" ]; then
    say "policy"
    if [ "$kind" = wide ]; then
        "$python" "$here/wide_policy.py" "$policy" ${POLICY_ARGS:-}
    else
        "$python" -m webrl init-policy "$policy" ${POLICY_ARGS:-}
    fi
fi

"$python" "$here/watch.py" "$out/watch.jsonl" ${WATCH_ARGS:-} &
watcher=$!
trap 'kill $watcher 2>/dev/null || true' EXIT

say "train"
status=0
"$python" -m webrl train --config "$here/$kind.toml" "run_dir=$work/run-$kind" \
    "policy.path=$policy" "inference.sglang_args=$args" "$@" || status=$?
kill -INT $watcher 2>/dev/null || true
wait $watcher || true

say "report"
for file in metrics.jsonl evaluations.jsonl run.log logs/rollout-0.log logs/test-rollout-0.log; do
    if [ -e "$work/run-$kind/$file" ]; then cp "$work/run-$kind/$file" "$out/$(basename "$file")"; fi
done
"$python" "$here/report.py" "$work/run-$kind" "$out/watch.jsonl" | tee "$out/report.json"
exit $status
