#!/bin/sh
# fuzz.sh FOLDER SECONDS: runs every fuzz target in FOLDER, two at a time, from the corpus of its
# name in fuzz/corpus. Prints a line per target; fails, with the target's log, if one crashed.
set -eu
folder=$1
seconds=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

# What xargs runs for one target.
cat >"$work/one" <<'SCRIPT'
#!/bin/sh
target=$1 seconds=$2 work=$3
name=$(basename "$target")
mkdir -p "$work/$name"
corpus=fuzz/corpus/${name%_fuzz}
[ -d "$corpus" ] || corpus=
if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$work/$name." "$work/$name" $corpus >"$work/$name.log" 2>&1; then
  echo "$name: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log") runs"
else
  echo "$name: FAILED"
  tail -n 60 "$work/$name.log"
  for input in "$work/$name".crash-* "$work/$name".timeout-* "$work/$name".oom-*; do
    [ -f "$input" ] && echo "input $(basename "$input"), base64:" && head -c 4096 "$input" | base64
  done
  exit 1
fi
SCRIPT
chmod +x "$work/one"
find "$folder" -name '*_fuzz' -type f -perm -u+x | sort |
  xargs -P 2 -I TARGET "$work/one" TARGET "$seconds" "$work"
