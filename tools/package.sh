#!/usr/bin/env bash
# Build wheel and sdist into a folder, check them, and use the wheel as a stranger would: in a new virtual environment,
# from an empty folder, with the packages that an index gives. The suite does the same without an index.
#   package.sh PYTHON OUT
set -euo pipefail
python=${1:?usage: package.sh PYTHON OUT}; out=${2:?usage: package.sh PYTHON OUT}
cd "$(dirname "$0")/.."
work=$(mktemp -d); demo=
trap '[ -z "$demo" ] || kill "$demo" 2>/dev/null || true; rm -rf "$work"' EXIT

say() { echo "package: $*"; }
fail() { echo "package: $*" >&2; exit 1; }
tops() { ls "$packages" | grep -iE '^_*vllm|^exporter' || true; }

say "building"
"$python" -m venv "$work/builder"
"$work/builder/bin/pip" install -q --disable-pip-version-check 'pip>=25.1'
"$work/builder/bin/pip" install -q --disable-pip-version-check --group release
rm -rf "$out"
"$work/builder/bin/python" -m build -o "$out" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$work/builder/bin/twine" check --strict "$out"/*
"$work/builder/bin/check-wheel-contents" "$out"/*.whl
wheel=$(realpath "$out"/*.whl)

say "installing ${wheel##*/}[build]"
"$python" -m venv "$work/venv"
bin=$work/venv/bin
packages=$("$bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
"$bin/pip" install -q --disable-pip-version-check "$wheel[build]"
[ "$(tops | grep -vc 'dist-info$')" = 1 ] || fail "more than one top-level package: $(tops | tr '\n' ' ')"

mkdir "$work/empty"; cd "$work/empty"
say "building rules, dashboards and Kubernetes objects"
"$bin/vllm-vitals" rules build -o a
"$bin/vllm-vitals" dashboards build -o d
"$bin/vllm-vitals" kubernetes build -o k
"$bin/vllm-vitals" rules check -o a
"$bin/vllm-vitals" dashboards check -o d
say "$(find a d k -type f | wc -l) files"

say "starting the demo"
PYTHONUNBUFFERED=1 "$bin/vllm-vitals" demo --listen 127.0.0.1:0 >demo.log 2>&1 & demo=$!
for _ in $(seq 120); do
  page=$(grep -oE 'http://[^ ]+' demo.log || true)
  [ -z "$page" ] || break
  kill -0 "$demo" 2>/dev/null || { cat demo.log >&2; fail "the demo ended"; }
  sleep 0.5
done
[ -n "$page" ] || fail "the demo did not start within a minute"
"$bin/python" -c 'import sys, urllib.request; sys.exit(b"vllm-vitals" not in urllib.request.urlopen(sys.argv[1], timeout=60).read())' "$page"
kill "$demo"; wait "$demo" || true; demo=

say "uninstalling"
"$bin/pip" uninstall -q --disable-pip-version-check -y vllm-vitals
[ -z "$(tops)" ] && [ ! -e "$bin/vllm-vitals" ] || fail "left behind: $(tops | tr '\n' ' ')"
say "done: $out"
