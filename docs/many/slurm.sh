#!/bin/bash
# A command of vitral on machines that SLURM gives out: one task on each, which starts the processes.
#
#     sbatch slurm.sh predict runs/digits pictures
#SBATCH --job-name=vitral
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -euo pipefail
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export FIRST MACHINES=$SLURM_JOB_NUM_NODES JOB=$SLURM_JOB_ID PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=1 "${SCRIPTS:-$SLURM_SUBMIT_DIR}/machines.sh" "$@"
