#!/usr/bin/env bash
# Shows that deploy/compose.yaml brings up four containers that serve, survive each other's deaths and leave nothing behind
# (harness/containers.py has the list), on a Docker engine of its own:
#
#     deploy/test-compose.sh [PROGRAM]         (target/debug/tandem)
#
# The engine runs in namespaces of its own for processes, mounts, network and IPC, so that all of it ends with this script and nothing on
# this machine changes. It needs root. Debian's packages docker.io, iptables and docker-compose are installed where they are missing
# and can be; where an engine cannot be had, the script says why and ends well.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
most_seconds=230

skip() {
  echo "skipped: the containers of deploy/compose.yaml, because $1" >&2
  exit 0
}

have() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || return 1
  done
}

# Prints the folder of docker's plugins, with compose among them. Debian has version 2 of compose from release 13 on.
compose_plugin() {
  local dir="$root/target/docker/cli-plugins"
  if [ ! -x "$dir/docker-compose" ]; then
    local work mirror
    work="$(mktemp -d)"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$dir"
    # The mirror that this system uses itself.
    mirror="$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' |
      awk '!found && /\/debian\/*$/ { found = 1; print }')" && [ -n "$mirror" ] || return 1
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$work/sources.list"
    local options=(-qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$work/lists"
      -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
    (
      cd "$work"
      timeout 120 apt-get "${options[@]}" update >&2
      timeout 120 apt-get "${options[@]}" download docker-compose >&2
      dpkg-deb --extract docker-compose_*.deb unpacked
      install unpacked/usr/libexec/docker/cli-plugins/docker-compose "$dir/docker-compose"
    ) || return 1
    rm -rf "$work"
  fi
  dirname "$dir"
}

# The image that the program's own is built upon: the libraries that it asks for, and nothing else.
import_base_image() {
  local tree="$1/base" library
  mkdir -p "$tree"
  ldd "$2" | grep -o '/[^ ]*' | while read -r library; do
    install -D "$library" "$tree$library"
  done
  tar -C "$tree" -c . | docker import - "$3" >"$1/import.log"
}

# As process 1 of its own namespaces.
inside() {
  local work="$1" program="$2"
  ip link set lo up || skip "a network of its own cannot be set up here"
  export DOCKER_HOST="unix://$work/docker.sock"
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" --host "$DOCKER_HOST" \
    --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$(basename "$work")" >"$work/dockerd.log" 2>&1 &
  local engine=$!
  for _ in $(seq 100); do
    docker version >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.2
  done
  if ! docker version >/dev/null 2>&1; then
    grep -v level=info "$work/dockerd.log" | tail -5 >&2
    skip "the Docker engine does not start here"
  fi
  export BASE_IMAGE=tandem-test-runtime
  import_base_image "$work" "$program" "$BASE_IMAGE"
  python3 "$root/harness/containers.py" --program "$program" --work "$work"
  kill "$engine"
  wait "$engine" || true
}

if [ "${1:-}" = --inside ]; then
  inside "$2" "$3"
  exit
fi

program="$(realpath "${1:-${CARGO_TARGET_DIR:-$root/target}/debug/tandem}")"
[ -x "$program" ] || {
  echo "error: $program is not there; \`cargo build\` makes it" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || skip "an engine needs root"
unshare --mount --net --pid --ipc --fork --mount-proc true 2>/dev/null || skip "namespaces are not to be had here"
if ! have dockerd docker iptables ip; then
  have apt-get || skip "there is no dockerd, and no apt-get to install it"
  packages=(docker.io iptables iproute2)
  { apt-get -qq update && apt-cache show docker-cli && packages+=(docker-cli); } >/dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends "${packages[@]}" \
    >/dev/null || skip "docker.io cannot be installed"
fi
if ! docker compose version >/dev/null 2>&1; then
  DOCKER_CONFIG="$(compose_plugin)" || skip "docker compose cannot be installed"
  export DOCKER_CONFIG
  docker compose version >/dev/null 2>&1 || skip "docker compose from Debian 13 does not run here"
fi

work="$(mktemp -d -t tandem-compose-XXXXXX)"
cleanup() {
  # Control groups outlive the namespaces, empty.
  find /sys/fs/cgroup -depth -type d -path "*/$(basename "$work")*" -exec rmdir {} + 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
# What the Dockerfile's stage from-binary expects.
mkdir -p "$work/context/tree/program" "$work/context/tree/empty"
strip --strip-debug -o "$work/context/tree/program/tandem" "$program"
timeout --kill-after=5 "$most_seconds" \
  unshare --mount --net --pid --ipc --fork --kill-child=SIGKILL --mount-proc "$0" --inside "$work" "$work/context/tree/program/tandem"
