#!/usr/bin/env bash
# What a full installation of the wheel consists of: a CycloneDX SBOM, and every package's licence with its text.
#   sbom.sh PYTHON DIST OUT
set -euo pipefail
python=${1:?usage: sbom.sh PYTHON DIST OUT}; dist=${2:?usage: sbom.sh PYTHON DIST OUT}; out=${3:?usage: sbom.sh PYTHON DIST OUT}
cd "$(dirname "$0")/.."
wheel=$(realpath "$dist"/*.whl)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install -q --disable-pip-version-check 'pip>=25.1'
"$work/tools/bin/pip" install -q --disable-pip-version-check --group sbom
"$python" -m venv "$work/venv"
# the versions that the image has and the tests ran with
sed -E 's/ *\\$//; /^ +--hash/d' requirements/develop.txt >"$work/versions.txt"
"$work/venv/bin/pip" install -q --disable-pip-version-check -c "$work/versions.txt" "$wheel[build,dns,review]"
"$work/venv/bin/pip" uninstall -q --disable-pip-version-check -y pip setuptools

rm -rf "$out"; mkdir -p "$out"
"$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
  --output-file "$out/vllm-vitals.cdx.json" "$work/venv/bin/python"
"$work/tools/bin/pip-licenses" --python "$work/venv/bin/python" --from=mixed --with-urls --format=markdown \
  --output-file="$out/LICENSES.md"
"$work/tools/bin/pip-licenses" --python "$work/venv/bin/python" --from=mixed --with-license-file --no-license-path \
  --format=plain-vertical --output-file="$out/LICENSE-TEXTS.txt"
echo "sbom: $(grep -c '^|' "$out/LICENSES.md") lines of licences: $out"
