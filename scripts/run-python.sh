#!/bin/sh
# run-python.sh ENVIRONMENT SCRIPT...: runs a script in the Python environment that
# scripts/python-environment.sh makes. Exit code 77 where there is none.
set -eu
python=$1/bin/python
shift
[ -x "$python" ] || {
  echo "SKIPPED: there is no $python; \`make test\` makes it"
  exit 77
}
exec "$python" "$@"
