# shellcheck shell=bash disable=SC2034
# Shared by tools/quickstart and tools/check: installs Debian packages that are missing, and builds.
# Sourced with the working directory at the top of the tree.

# What building and running needs.
readonly build_packages=(
  g++ cmake ninja-build python3
  libabsl-dev libprotobuf-dev protobuf-compiler libgrpc++-dev protobuf-compiler-grpc
  librocksdb-dev libzstd-dev libssl-dev libxxhash-dev
  nlohmann-json3-dev libcli11-dev prometheus-cpp-dev catch2
)
# What checking needs beyond that.
readonly check_packages=(git python3-venv clang-format clang-tidy spin iproute2 iptables openssl)

# As many compilers at a time as there are cores and memory (1.5 GiB each) for.
jobs=$(nproc)
memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo 2>/dev/null || true)
if [[ -n $memory_jobs && $memory_jobs -lt $jobs ]]; then jobs=$memory_jobs; fi
if [[ $jobs -lt 1 ]]; then jobs=1; fi
readonly jobs

say() { printf '\n== %s\n' "$*"; }

# install_packages NAME...: installs those that are missing, as root or through sudo. Where it can
# do neither it says what to install and fails.
install_packages() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system, so nothing is installed. Needed, under the names it has for them:"
    echo "  $*"
    return 0
  fi
  for package in "$@"; do
    if [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "All $# packages are there; nothing to install."
    return 0
  fi

  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages: ${missing[*]}" >&2
      echo "Neither root nor sudo here. Have them installed, then run this again:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing ${#missing[@]} Debian packages and what they depend on: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update </dev/null &&
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# build PRESET [TARGET...]: configures and builds; every target if none is named.
build() {
  local preset=$1
  shift
  local targets=()
  if [[ $# -gt 0 ]]; then targets=(--target "$@"); fi
  cmake --preset "$preset" --log-level=WARNING &&
    cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
}

# duration SECONDS: 75 becomes 1 min 15 s.
duration() {
  if [[ $1 -lt 60 ]]; then
    echo "$1 s"
  else
    echo "$(($1 / 60)) min $(($1 % 60)) s"
  fi
}
