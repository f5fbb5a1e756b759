#!/usr/bin/env bash
# Build the wheel into $1 (default: dist), install it with what it asks for into a fresh environment,
# and use it from a folder without the sources.
set -euo pipefail

python=${PYTHON:-python3}
sources=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-dist}"
dist=$(cd "${1:-dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# From a copy: a build leaves folders behind, and takes what an earlier one left.
cp -r "$sources"/{pyproject.toml,README.md,LICENSE,src} "$work"
cp -r "$sources/examples" "$work/examples"
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check --quiet)
rm -f "$dist"/coordinate_eval-*.whl
"${pip[@]}" wheel --no-deps --wheel-dir "$dist" "$work"
"${pip[@]}" install --no-compile "$dist"/coordinate_eval-*.whl
"${pip[@]}" check
rm -rf "$work/src"

# Neither settings of the user nor variables of Python may help.
cd "$work/examples"
clean=(env -i HOME="$work" PATH="$work/venv/bin:/usr/bin:/bin" LANG=C.UTF-8)
version=$("${clean[@]}" coordinate-eval --version)
echo "coordinate-eval $version, $("$work/venv/bin/python" --version)"
[ -e "$dist/coordinate_eval-$version-py3-none-any.whl" ]
"${clean[@]}" coordinate-eval --help >/dev/null
"${clean[@]}" coordinate-eval suites base >/dev/null
"${clean[@]}" "$work/venv/bin/python" after_each_save.py --checkpoints "$work/saved" \
    --dry-run --cluster cluster.yaml
plan=$work/saved/step-200.evaluation.log
grep -q '^makespan ' "$plan" || { cat "$plan" >&2; exit 1; }
sed -n 1,5p "$plan"
"${clean[@]}" coordinate-eval "$work/saved/step-200" --suite suite.yaml --dry-run \
    --cluster cluster.yaml --json >"$work/plan.json"
grep -q '"schema": "coordinate-eval/plan@1"' "$work/plan.json"
