#!/bin/bash
# A command of vitral in several processes of this machine: as many as it has GPUs, or as PROCESSES says.
#
#     PROCESSES=2 ./machine.sh predict runs/digits pictures
set -euo pipefail
: "${PROCESSES:=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}"
exec torchrun --standalone --nproc-per-node="$PROCESSES" -m vitral "$@"
