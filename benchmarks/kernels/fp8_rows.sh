#!/bin/sh
# 8-bit products with one scale per row against one per tensor, on a GPU machine: errors, the loss of a 125M Llama, the speed of Llama 8B.
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-.}
export PYTHONPATH="$PWD/src:$PWD/benchmarks/trainer:$PWD/tests:$PYTHONPATH" OUT
python -m pytest -q -p no:cacheprovider tests/workers/trainer/ops/test_kernels_on_gpu.py -k 8_bits > /tmp/errors.log 2>&1 &
python benchmarks/trainer/losses.py 60 fp8 fp8-row > /tmp/losses.log 2>&1 &
wait
tail -n 12 /tmp/errors.log
tail -n 4 /tmp/losses.log
python benchmarks/trainer/train.py --many '{
  "8b fp8": ["llama-3-8b", 4, 2048, {"precision": "fp8", "exact": true, "steps": 10, "profile": true}],
  "8b fp8-row": ["llama-3-8b", 4, 2048, {"precision": "fp8-row", "exact": true, "steps": 10, "profile": true}]}' 2>&1 | tail -n 5
mv "$OUT/cases.jsonl" "$OUT/hosts.json"
