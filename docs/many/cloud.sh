#!/bin/bash
# A command of vitral where a launcher starts this script once on each machine, and says in RANK and WORLD_SIZE which
# machine this is and of how many, in MASTER_ADDR and MASTER_PORT where the first one listens.
#
#     ./cloud.sh predict runs/digits pictures
set -euo pipefail
: "${PROCESSES:=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}"  # on this machine
exec torchrun --nnodes="$WORLD_SIZE" --node-rank="$RANK" --nproc-per-node="$PROCESSES" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
    -m vitral "$@"
