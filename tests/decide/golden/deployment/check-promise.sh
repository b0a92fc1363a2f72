#!/bin/sh
# Is the SLO met? check-promise.sh URL [flags of inferometer load]; exit 0 met, 10 missed, 11 undecided.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
url=${1:?"the address of the router, such as http://127.0.0.1:8080"}
shift
exec inferometer load "$url" --model meta-llama/Llama-3.1-8B-Instruct --workload "$here/workload.json" --rate 8 --for 250s --slo 'ttft:p95<500ms, tpot:p90<60ms' "$@"
