sbatch \
  --parsable \
  --job-name=run7.trial.node1 \
  --output=/runs/7/logs/trial-node1.%j.log \
  --open-mode=append \
  --export=ALL \
  --propagate=NONE \
  --nodes=2 \
  --ntasks=2 \
  --ntasks-per-node=1 \
  --cpus-per-task=32 \
  --mem=65536M \
  --time=45 \
  --signal=B:USR1@60 \
  --no-requeue \
  --gres=gpu:h200:8 \
  --nodelist=node1,node2 \
  --partition=gpu \
  --account=pretrain \
  --qos=idle \
  '--constraint=h200&ib' \
  --exclude=node7 \
  --comment \
  'left over' <<'END_OF_JOB'
#!/bin/bash
# A job of coordinate-eval. Its options are on sbatch's command line, not in #SBATCH lines.
set -e
export COORDINATE_EVAL_INDEX="${SLURM_ARRAY_TASK_ID:-0}"
task="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
export COORDINATE_EVAL_TASK="$task.${SLURM_RESTART_COUNT:-0}"
export COORDINATE_EVAL_NODE="$SLURMD_NODENAME"
# In a container, or below srun, it may be a pipe.
export COORDINATE_EVAL_LOG="$(readlink "/proc/$$/fd/2")"
# srun starts the program once on each node, and passes on signals.
export COORDINATE_EVAL_RANK="SLURMD_NODENAME SLURM_PROCID"
# This job asks Slurm for nothing.
unset SLURM_JWT
# Nothing is looked for where the job was submitted.
cd -- /
module load cuda
source '/opt/my env/bin/activate'
set -- \
  srun \
  --nodes=2 \
  --ntasks=2 \
  --ntasks-per-node=1 \
  --cpus-per-task=32 \
  --kill-on-bad-exit=1 \
  --wait=300 \
  --mpi=none \
  --input=none \
  /opt/venv/bin/coordinate-eval \
  _trial \
  /runs/7 \
  node1
# Above is what others say: a profile, the setup. A disk that is full must end no job here.
printf '\n%s\n' 'coordinate-eval: if this job fails, the cause is below this line' >&2 || :
# Replaces the shell, so that Slurm's warning signal reaches the program.
exec -- "$@"
END_OF_JOB
