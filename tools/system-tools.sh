#!/usr/bin/env bash
# The programs that tests drive. As root on Debian or Ubuntu what is missing is installed; elsewhere it is named, and
# the tests that need it skip with that reason. In CI (CI=true) a missing program fails those tests.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need promtool prometheus
need prometheus prometheus
need amtool prometheus-alertmanager
need victoria-metrics victoria-metrics
need vmalert victoria-metrics
need openssl openssl
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)

if [ ${#missing[@]} -gt 0 ]; then
  packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "tools: installing $packages"
    # the packages would start services: tests start their own, on their own ports
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
      printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; trap 'rm -f $policy' EXIT
    fi
    apt-get -qq update
    for package in $packages; do  # one by one: a release that lacks one has the others
      DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package" >/dev/null ||
        echo "tools: could not install $package" >&2
    done
  else
    echo "tools: not here: $packages; tests that need them are skipped (apt-get install them to run these)"
  fi
fi

# The rules are tested with Debian's Prometheus and VictoriaMetrics (the floor) and with current ones.
if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
  tools/modern-prometheus.sh .tools/prometheus \
    prometheus promtool prometheus-alertmanager victoria-metrics docker-compose >/dev/null ||
    echo "tools: no current releases to be had: tests use the installed ones alone" >&2
fi
