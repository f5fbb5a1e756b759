#!/usr/bin/env bash
# Submit the evaluation of each checkpoint that has not been submitted yet.
#
#   evaluate_new.sh FOLDER [OPTIONS OF coordinate-eval]
#
# A checkpoint is a folder FOLDER/step-*. For each one that was submitted there is an empty file in
# $ASKED (default: ~/.coordinate-eval/asked). Remove that file to submit the checkpoint again.
set -euo pipefail
folder=$(realpath "${1:?which folder has the checkpoints?}")
shift
asked=${ASKED:-$HOME/.coordinate-eval/asked}
mkdir -p "$asked"

# The first call builds all prompts, which takes minutes. A call that finds it running ends at once.
exec 9>"$asked/lock"
flock --nonblock 9 || exit 0

for checkpoint in "$folder"/step-*/; do
    [ -d "$checkpoint" ] || continue
    checkpoint=${checkpoint%/}
    mark=$asked/${checkpoint//\//%}
    [ ! -e "$mark" ] || continue
    status=0
    coordinate-eval "$checkpoint" --queue "$@" 9>&- || status=$?
    case $status in
        0 | 1) touch "$mark" ;; # submitted; 1: without Slurm, it ran here and lacks results
        2) ;;                   # refused: stderr says why. It may still be incomplete: ask again
        *) exit "$status" ;;    # 3: the scheduler does not answer
    esac
done
