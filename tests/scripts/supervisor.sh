sbatch \
  --parsable \
  --job-name=run7.supervisor \
  --output=/runs/7/logs/supervisor.%j.log \
  --open-mode=append \
  --export=ALL \
  --propagate=NONE \
  --nodes=1 \
  --ntasks=1 \
  --cpus-per-task=1 \
  --mem=1024M \
  --time=720 \
  --signal=B:USR1@60 \
  --requeue \
  --partition=cpu \
  --account=pretrain \
  --qos=idle \
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
# Slurm's warning is for the program below, and would end the shell.
trap '' USR1
# Nothing is looked for where the job was submitted.
cd -- /runs/7/work
module load cuda
source '/opt/my env/bin/activate'
set -- \
  /opt/venv/bin/coordinate-eval \
  _supervise \
  /runs/7
# A program that is killed, but not by Slurm, starts again: one that does not listen to warnings yet
# is killed by the first.
export COORDINATE_EVAL_STARTED="$(date +%s)"
set +e
asked=0 restarts=0
pass_on() {
  heard=1
  kill -s "$1" "$!" 2>/dev/null
}
trap 'pass_on USR1' USR1
trap 'asked=1; pass_on TERM' TERM
while :; do
  "$@" &
  # A signal ends `wait` early, but not the program.
  while heard=0; wait "$!"; status=$?; [ "$heard" = 1 ]; do :; done
  [ "$status" -gt 128 ] && [ "$restarts" -lt 5 ] || exit "$status"
  sleep 1
  [ "$asked" = 0 ] || exit "$status"
  restarts=$((restarts + 1))
  echo "coordinate-eval: ended by signal $((status - 128)), started again ($restarts)" >&2
done
END_OF_JOB
