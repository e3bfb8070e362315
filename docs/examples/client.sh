#!/usr/bin/env bash
# Ask a served model once over HTTP, with a deadline: client.sh MODEL INPUT SHAPE [URL] [DEADLINE_US]
# For instance: client.sh mymodel input 1,3,224,224
set -euo pipefail
model=$1 input=$2 shape=$3 url=${4:-http://127.0.0.1:8000} deadline_us=${5:-1000000}
count=$((${shape//,/*}))
zeros=$(printf '0,%.0s' $(seq "$count"))
curl --silent --show-error --fail-with-body --max-time "$(awk "BEGIN {print $deadline_us / 1e6 + 0.1}")" \
  --header 'Content-Type: application/json' --data @- "$url/v2/models/$model/infer" <<JSON
{"parameters": {"timeout": $deadline_us},
 "inputs": [{"name": "$input", "datatype": "FP32", "shape": [$shape], "data": [${zeros%,}]}]}
JSON
