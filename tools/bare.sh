#!/usr/bin/env bash
# Run a command on a machine that has no more than the README names: Python, make, git, and what every Debian has.
# All else is out of its PATH, so that a test that needs it is skipped here as it is elsewhere.
set -euo pipefail

bare=$(mktemp -d)
trap 'rm -rf "$bare"' EXIT

# What cannot be removed from a Debian, its shell and basic tools; elsewhere, what POSIX names of it.
programs() {
    if command -v dpkg-query > /dev/null; then
        dpkg-query --showformat '${Essential} ${Package}\n' --show | sed -n 's/^yes //p' | xargs dpkg -L
    else
        printf '%s\n' sh bash env cat cp mv rm ln ls mkdir mktemp touch chmod date sleep kill ps sed grep awk find sort \
            head tail tr cut wc uname hostname id tee xargs expand diff cmp tar gzip stat realpath dirname basename
    fi
}

for program in $(programs | grep -E '^[^/]*$|/s?bin/[^/]+$' | sed 's,.*/,,') git make "${PYTHON:-python3}"; do
    found=$(command -v "$program") || continue
    [[ $found != /* ]] || ln -sf "$found" "$bare/"
done
# A wrapper that looks for its own name would miss it.
ln -sf "$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')" "$bare/python3"
PATH=$bare "$@"
