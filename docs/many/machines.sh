#!/bin/bash
# The same command of vitral on several machines: type it on each, with the name of one of them.
#
#     FIRST=node1 MACHINES=2 ./machines.sh predict runs/digits pictures
set -euo pipefail
: "${PROCESSES:=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}"  # on this machine
exec torchrun --nnodes="$MACHINES" --nproc-per-node="$PROCESSES" \
    --rdzv-backend=c10d --rdzv-endpoint="$FIRST:${PORT:-29500}" --rdzv-id="${JOB:-vitral}" \
    -m vitral "$@"
