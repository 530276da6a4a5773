#!/usr/bin/env bash
# Resolve what is installed, once, for every platform and Python that we support: requirements/*.txt, with hashes.
#   lock.sh PYTHON [ARGUMENT OF uv pip compile ...]      e.g. --upgrade, or --upgrade-package aiohttp
# Entries that still satisfy pyproject.toml stay as they are.
set -euo pipefail
python=${1:?usage: lock.sh PYTHON [ARGUMENT ...]}; shift
cd "$(dirname "$0")/.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work"
"$work/bin/pip" install -q --disable-pip-version-check 'pip>=25.1'
"$work/bin/pip" install -q --disable-pip-version-check --group lock
compile() {
  local out=$1; shift
  "$work/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command "make lock" --output-file "$out" "$@"
  echo "lock: $(grep -c '^[a-z]' "$out") packages: $out"
}
compile requirements/runtime.txt pyproject.toml --extra dns "$@"
compile requirements/build.txt requirements/build.in --constraint requirements/runtime.txt "$@"
compile requirements/develop.txt pyproject.toml --extra build --extra dns --extra review --group test \
  --constraint requirements/runtime.txt --constraint requirements/build.txt "$@"
