#!/bin/bash
# Runs every fuzz target for SECONDS, beginning with its corpus; fails on the first crash, whose
# input is left in OUT. usage: fuzz/run.sh [SECONDS [BUILD_FOLDER [OUT]]]
set -u
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=${2:-build-asan}
out=${3:-$build/fuzz-findings}
mkdir -p "$out"
count=0
for target in "$build"/fuzz/*_fuzz; do
  [ -x "$target" ] || { echo "no fuzz targets in $build/fuzz: build the preset asan first" >&2; exit 2; }
  name=$(basename "$target" _fuzz)
  # New inputs go to the first folder, so that the corpus in the repository stays as it is.
  found=$(mktemp -d)
  echo "== $name: $seconds s, $(ls "fuzz/corpus/$name" 2>/dev/null | wc -l) inputs"
  mkdir -p "fuzz/corpus/$name"
  if ! "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
       -print_final_stats=1 -artifact_prefix="$out/$name-" \
       "$found" "fuzz/corpus/$name" >"$out/$name.log" 2>&1; then
    rm -rf "$found"
    tail -40 "$out/$name.log"
    echo "$name: crashed; the input is in $out" >&2
    exit 1
  fi
  grep -E 'stat::number_of_executed_units|stat::new_units_added' "$out/$name.log"
  rm -rf "$found"
  count=$((count + 1))
done
echo "$count targets, no crash"
