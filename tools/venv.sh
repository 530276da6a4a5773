#!/usr/bin/env bash
# Make a virtual environment with the program (editable) and everything that its tests and generators need: the versions
# of requirements/develop.txt, and no file whose hash is not there.
#   venv.sh PYTHON DIR
set -euo pipefail
python=${1:?usage: venv.sh PYTHON DIR}; dir=${2:?usage: venv.sh PYTHON DIR}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "setup: needs Python 3.11 or later; say which: make PYTHON=/path/to/python3.12 test" >&2; exit 1; }

if [ ! -x "$dir/bin/python" ]; then
  # Debian ships venv apart from Python
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "setup: installing python3-venv"
      apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
    else
      echo "setup: Python's venv module is missing: apt-get install python3-venv (as root), then again" >&2; exit 1
    fi
  fi
  "$python" -m venv "$dir"
fi
pip=("$dir/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" --require-hashes -r requirements/develop.txt
# what builds it was installed above, by hash: nothing else is fetched
"${pip[@]}" --no-deps --no-build-isolation --no-index --editable .
echo "setup: $dir is ready"
