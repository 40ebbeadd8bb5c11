#!/bin/sh
# Installs those of the given Debian packages that are missing. Does and says nothing when all are
# there, or where there is no dpkg: then the build itself says what it lacks.
set -eu
command -v dpkg-query >/dev/null || exit 0
missing=
for package in "$@"; do
  case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true) in
    *" installed") ;;
    *) missing="$missing $package" ;;
  esac
done
[ -z "$missing" ] && exit 0
echo "Installing Debian packages:$missing"
as_root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "Not root and no sudo; as root run: apt-get install$missing" >&2
    exit 1
  }
  as_root=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get -qq update
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
  $missing >/dev/null
