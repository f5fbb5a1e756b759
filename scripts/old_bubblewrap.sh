#!/usr/bin/env bash
# Builds old versions of bubblewrap into build/: the last one that is too old for the sandbox (0.6.1,
# as Ubuntu 22.04 has it), and the oldest that is not, which no release of Debian or Ubuntu has. Tests in
# tests/hostile use them where they are. REPOSITORY is a clone or an address of it: the sources are not
# among Debian's, so a machine that reaches package archives alone needs a clone. Nothing is installed.
# Needs git, gcc and the headers of libcap (Debian: libcap-dev).
set -euo pipefail

repository=${1:-https://github.com/containers/bubblewrap}
build=$(cd "$(dirname "$0")/.." && pwd)/build
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT

for version in 0.6.1 0.7.0; do
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch "v$version" \
        "$repository" "$sources/$version"
    cd "$sources/$version"
    echo "#define PACKAGE_STRING \"bubblewrap $version\"" >config.h
    target=$build/bubblewrap-${version%.*}
    mkdir -p "$target"
    gcc -O2 -w -D_GNU_SOURCE -I. -o "$target/bwrap" \
        bubblewrap.c bind-mount.c network.c utils.c -lcap
    "$target/bwrap" --version
done
