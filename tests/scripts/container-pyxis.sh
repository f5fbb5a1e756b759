sbatch \
  --parsable \
  --job-name=run7.trial.node1 \
  --output=/runs/7/logs/trial-node1.%A_%a.log \
  --open-mode=append \
  --export=ALL \
  --propagate=NONE \
  --nodes=1 \
  --ntasks=1 \
  --cpus-per-task=8 \
  --mem=1024M \
  --time=45 \
  --signal=B:USR1@60 \
  --no-requeue \
  --array=0-3 \
  --gres=gpu:h200:2 \
  --nodelist=node1 <<'END_OF_JOB'
#!/bin/bash
# A job of coordinate-eval. Its options are on sbatch's command line, not in #SBATCH lines.
set -e
export COORDINATE_EVAL_INDEX="${SLURM_ARRAY_TASK_ID:-0}"
task="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
export COORDINATE_EVAL_TASK="$task.${SLURM_RESTART_COUNT:-0}"
export COORDINATE_EVAL_NODE="$SLURMD_NODENAME"
# In a container, or below srun, it may be a pipe.
export COORDINATE_EVAL_LOG="$(readlink "/proc/$$/fd/2")"
# In a container, it may be another one.
export COORDINATE_EVAL_ON_NODE="$(stat -Lc %d:%i -- /dev/shm)"
# This job asks Slurm for nothing.
unset SLURM_JWT
# Nothing is looked for where the job was submitted.
cd -- /runs/7/work
set -- \
  env \
  --unset=PYTHONPATH \
  --unset=PYTHONHOME \
  --unset=PYTHONUSERBASE \
  --unset=PYTHONSTARTUP \
  --unset=PYTHONPYCACHEPREFIX \
  --unset=VIRTUAL_ENV \
  --unset=CONDA_PREFIX \
  --unset=CONDA_DEFAULT_ENV \
  --unset=LD_LIBRARY_PATH \
  --unset=LD_PRELOAD \
  --unset=LIBRARY_PATH \
  --unset=CPATH \
  --unset=CC \
  --unset=CXX \
  --unset=BASH_ENV \
  --unset=CUDA_HOME \
  --unset=CUDA_PATH \
  --unset=ROCM_HOME \
  --unset=ROCM_PATH \
  --unset=SSL_CERT_FILE \
  --unset=SSL_CERT_DIR \
  --unset=REQUESTS_CA_BUNDLE \
  --unset=CURL_CA_BUNDLE \
  --unset=XDG_CACHE_HOME \
  --unset=XDG_CONFIG_HOME \
  --unset=XDG_DATA_HOME \
  srun \
  --nodes=1 \
  --ntasks=1 \
  --cpus-per-task=8 \
  --container-image=/images/vllm.sif \
  --container-mounts=/runs/7:/runs/7,/dev/shm:/dev/shm,/ckpt/5:/ckpt/5:ro \
  --container-workdir=/runs/7/work \
  --no-container-mount-home \
  --no-container-remap-root \
  --no-container-entrypoint \
  --container-writable \
  env \
  HOME=/runs/7/home \
  COORDINATE_EVAL_IMAGE=/images/vllm.sif \
  'COORDINATE_EVAL_NEEDS=pydantic>=2.12 vllm>=0.19' \
  COORDINATE_EVAL_SHARED=/dev/shm \
  python3 \
  /opt/coordinate-eval/coordinate_eval/_in_image.py \
  _trial \
  /runs/7 \
  node1
# Above is what others say: a profile, the setup. A disk that is full must end no job here.
printf '\n%s\n' 'coordinate-eval: if this job fails, the cause is below this line' >&2 || :
# Replaces the shell, so that Slurm's warning signal reaches the program.
exec -- "$@"
END_OF_JOB
