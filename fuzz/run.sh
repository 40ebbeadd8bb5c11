#!/bin/bash
# Runs every fuzz target for SECONDS, two at a time, beginning with its corpus. A crash fails the run
# once all are done; its input is left in OUT. usage: fuzz/run.sh [SECONDS [BUILD_FOLDER [OUT]]]
set -u
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=${2:-build-asan}
out=${3:-$build/fuzz-findings}
mkdir -p "$out"
shopt -s nullglob
targets=("$build"/fuzz/*_fuzz)
[ ${#targets[@]} -gt 0 ] || { echo "no fuzz targets in $build/fuzz: build the preset asan first" >&2; exit 2; }

run_one() {
  local target=$1 name found status
  name=$(basename "$target" _fuzz)
  mkdir -p "fuzz/corpus/$name"
  # New inputs go to the first folder, so that the corpus in the repository stays as it is.
  found=$(mktemp -d)
  "$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$out/$name-" "$found" "fuzz/corpus/$name" \
    >"$out/$name.log" 2>&1
  status=$?
  rm -rf "$found"
  if [ $status -ne 0 ]; then
    tail -40 "$out/$name.log"
    echo "$name: crashed; the input is in $out"
    return 1
  fi
  echo "$name: $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$name.log") runs"
}
export -f run_one
export seconds out
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P 2 bash -c 'run_one "$1"' run_one || exit 1
echo "${#targets[@]} targets, no crash"
