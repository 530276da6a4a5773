#!/usr/bin/env bash
# Unpack current Prometheus and Alertmanager (or VictoriaMetrics, ...) from Debian's development suite below a folder.
# Nothing is installed and nothing outside the folder changes; a second call does nothing.
#   modern-prometheus.sh DIR [PACKAGE ...]       default: prometheus promtool prometheus-alertmanager; prints DIR/usr/bin
set -euo pipefail
dir=${1:?usage: modern-prometheus.sh DIR [PACKAGE ...]}; shift
[ $# -gt 0 ] || set -- prometheus promtool prometheus-alertmanager
suite=${DEBIAN_SUITE:-sid}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
wanted=()
for package in "$@"; do [ -e "$dir/.has-$package" ] || wanted+=("$package"); done
if [ ${#wanted[@]} -gt 0 ]; then
  # the archive that this machine already uses
  archive=$(grep -rhoE '[a-z]+://[^] ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | tr -d ' ' | head -n 1) || true
  [ -n "$archive" ] && [ -e $keyring ] || { echo "modern-prometheus: this is no Debian, or it has no archive configured" >&2; exit 1; }
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/lists/partial "$work"/cache/archives/partial "$work"/debs
  echo "deb [signed-by=$keyring] $archive $suite main" > "$work/sources.list"
  apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
       -o Dir::Cache="$work/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$work/debs" && "${apt[@]}" download "${wanted[@]/%//$suite}")
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$dir"; done
  for package in "${wanted[@]}"; do touch "$dir/.has-$package"; done
fi
echo "$dir/usr/bin"
