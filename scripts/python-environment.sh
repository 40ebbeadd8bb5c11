#!/bin/sh
# python-environment.sh FOLDER REQUIREMENTS: a Python environment with the packages of a requirements
# file. Where the package index cannot be reached it says so and succeeds: tests that need the
# packages are reported as skipped.
set -eu
folder=$1 requirements=$2
cmp -s "$requirements" "$folder/installed.txt" && exit 0
echo "Installing the Python packages of $requirements into $folder"
rm -rf "$folder"
if python3 -m venv "$folder" &&
  "$folder/bin/pip" --quiet --disable-pip-version-check --retries 1 --timeout 15 \
    install --requirement "$requirements"; then
  cp "$requirements" "$folder/installed.txt"
else
  echo "They could not be installed: tests that need them will be skipped." >&2
fi
