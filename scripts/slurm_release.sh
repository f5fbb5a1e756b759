#!/usr/bin/env bash
# Run a command beside the Slurm of another Debian release, as root:
#
#     scripts/slurm_release.sh trixie|sid COMMAND...
#
# trixie has Slurm 24.11, sid the newest, and Apptainer. A release is a root of its own in
# $SLURM_ROOTS (default /var/tmp/coordinate-eval-slurm), made by the first call in a few minutes;
# remove it to get newer packages. The command finds this checkout and its .venv at their own paths, and has a /tmp, a /run
# and a /dev/shm of its own. All of it ends with the command.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: needs root, to mount a release" >&2; exit 1; }
release=$1
shift
checkout=$(cd "$(dirname "$0")/.." && pwd)
root=${SLURM_ROOTS:-/var/tmp/coordinate-eval-slurm}/$release
interpreter=$(dirname "$(dirname "$(readlink -f "$checkout/.venv/bin/python")")")
case $interpreter in
/usr | /) echo "$0: .venv needs a Python outside of /usr, such as uv's or pyenv's" >&2 && exit 1 ;;
esac

make_root() {
  local more=()
  [ "$release" != sid ] || more+=(apptainer)
  command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=python3,make,git,ca-certificates,sudo \
    "$release" "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start no daemons
  chmod +x "$root/usr/sbin/policy-rc.d"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  # A proxy, and a machine whose clock is not that of the mirror.
  { grep -rlE 'Acquire::(http|Check)' /etc/apt/apt.conf.d || true; } |
    xargs -r cp -t "$root/etc/apt/apt.conf.d"
  inside bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends slurm-wlm slurm-client munge bubblewrap lmod g++ libboost-dev libssl-dev \
    nodejs procps iproute2 openssl "$@"' make "${more[@]}"
  touch "$root/.made"
}

# Enter with pivot_root: containers and the propagation of mounts need a real root.
inside() {
  root=$root checkout=$checkout interpreter=$interpreter \
    unshare --mount --pid --fork --kill-child --propagation private bash -c '
    set -euo pipefail
    mount --rbind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    for folder in dev/shm tmp run; do mount -t tmpfs tmpfs "$root/$folder"; done
    for folder in "$checkout" "$interpreter"; do
      mkdir -p "$root$folder"
      mount --rbind "$folder" "$root$folder"
    done
    mkdir -p "$root/run/outside"
    cd "$root"
    pivot_root . run/outside
    cd "$checkout"
    umount -l /run/outside
    export HOME=/root TMPDIR=/tmp
    exec "$@"' inside "$@"
}

[ -e "$root/.made" ] || make_root
inside "$@"
