sbatch \
  --parsable \
  '--job-name=a '"'"'b'"'"'
#SBATCH --hold
$(touch x)' \
  --output=/dev/null \
  --open-mode=append \
  --export=ALL \
  --propagate=NONE \
  --nodes=1 \
  --ntasks=1 \
  --cpus-per-task=1 \
  --mem=1M \
  --time=3 \
  --signal=B:USR1@60 \
  --no-requeue <<'END_OF_JOB'
#!/bin/bash
# A job of coordinate-eval. Its options are on sbatch's command line, not in #SBATCH lines.
set -e
export COORDINATE_EVAL_INDEX="${SLURM_ARRAY_TASK_ID:-0}"
task="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
export COORDINATE_EVAL_TASK="$task.${SLURM_RESTART_COUNT:-0}"
export COORDINATE_EVAL_NODE="$SLURMD_NODENAME"
# Slurm cannot write a log whose path has a backslash.
exec >>$'/runs/100% of\\it\x0a\''".$task.log" 2>&1
# This job asks Slurm for nothing.
unset SLURM_JWT
# Nothing is looked for where the job was submitted.
cd -- $'/runs/100% of\\it\x0a\' $(id)'
set -- \
  -c \
  $'it\'s "x"\x0d\x0a\\ `id` $HOME' \
  '' \
  '~' \
  A=b \
  $'\x01é\xe2\x80\xa8'
# Above is what others say: a profile, the setup. A disk that is full must end no job here.
printf '\n%s\n' 'coordinate-eval: if this job fails, the cause is below this line' >&2 || :
# Replaces the shell, so that Slurm's warning signal reaches the program.
exec -- "$@"
END_OF_JOB
