#!/usr/bin/env bash
# Debian packages that the tests use: a real Slurm, environment modules, a real sandbox, a real browser, compilers;
# or those that are named: packages.sh slurm-wlm munge.
# Installs what is missing where it may; says what to run where it may not.
set -euo pipefail

packages=(slurm-wlm slurm-client munge bubblewrap lmod)
packages+=(g++ libboost-dev libssl-dev golang-go golang-github-stretchr-testify-dev)
packages+=(default-jdk-headless libjavatuples-java nodejs)
packages+=(rustc cargo librust-md5-dev librust-rand-dev librust-regex-dev)
# Ubuntu has Chromium outside its packages only: there the test of a page in a browser is skipped.
[ -r /etc/debian_version ] && ! grep -qi ubuntu /etc/os-release && packages+=(chromium)
[ $# -gt 0 ] && packages=("$@")
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
        missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "not a Debian or Ubuntu machine: install ${missing[*]} by its own means;" \
        "tests that need them will say so" >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "to run all: sudo apt-get install -y ${missing[*]}" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq "${missing[@]}" >/dev/null
