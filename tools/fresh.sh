#!/usr/bin/env bash
# The README's commands on a machine that has never seen the project: a minimal Debian with Python, make and git, once
# as root and once as an ordinary user. How pip reaches its index is passed in, with the certificates; nothing else is.
# COMMANDS and USERS choose some of them; what they print is kept in LOGS.
set -euo pipefail
cd "$(dirname "$0")/.."

COMMANDS=${COMMANDS:-demo test test-kernels test-analysis test-commands}
USERS=${USERS:-root somebody}
LOGS=${LOGS:-$(mktemp -d -t attention-zoo-fresh-logs-XXXX)}
SUITE=${SUITE:-bookworm} # Python 3.11, the lowest that is supported
MIRROR=${MIRROR:-$(sed -n 's/^URIs: *//p;s/^deb \(\[[^]]*\] *\)\?\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null | head -1 || true)}

if [[ $EUID != 0 || -z $MIRROR ]] || ! command -v debootstrap > /dev/null; then
    echo "make fresh: needs root, debootstrap, and a mirror of Debian in MIRROR (on Debian: apt-get install debootstrap)" >&2
    exit 2
fi

# In a namespace of its own: what is mounted below is gone with this process, however it ends.
if [[ -z ${IN_NAMESPACE:-} ]]; then
    machine=$(mktemp -d -t attention-zoo-fresh-XXXX)
    chmod 755 "$machine"
    trap 'rm -rf --one-file-system "$machine"' EXIT
    IN_NAMESPACE=$machine COMMANDS=$COMMANDS USERS=$USERS LOGS=$LOGS MIRROR=$MIRROR SUITE=$SUITE \
        unshare --mount --pid --fork --kill-child --ipc tools/fresh.sh
    exit
fi
machine=$IN_NAMESPACE

echo "commit $(git rev-parse --short HEAD) on a minimal Debian ($SUITE), Python, make and git ..."
debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-venv "$SUITE" "$machine" "$MIRROR" \
    > "$LOGS/debootstrap.log" || { tail -3 "$LOGS/debootstrap.log" >&2; exit 1; }
mount --make-rprivate /
mount --bind "$machine" "$machine" # as a machine's root, a mount of its own
mount -t proc proc "$machine/proc"
mount -t sysfs -o ro sysfs "$machine/sys"
mount -t tmpfs tmpfs "$machine/dev"
for device in null zero full random urandom tty; do
    touch "$machine/dev/$device"
    mount --bind "/dev/$device" "$machine/dev/$device"
done
mkdir "$machine/dev/shm" "$machine/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$machine/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$machine/dev/pts"
ln -s pts/ptmx "$machine/dev/ptmx"
ln -s /proc/self/fd "$machine/dev/fd"

# What pip is set to, as its environment; local folders that it names, and the certificates, read-only.
settings=()
while IFS='=' read -r key value; do
    name=${key##*.}
    value=${value#\'} value=${value%\'}
    settings+=("PIP_$(tr 'a-z-' 'A-Z_' <<< "$name")=${value//\\n/ }")
done < <(python3 -m pip config list)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done
for word in /etc/ssl/certs ${settings[*]#*=}; do
    path=${word#file://}
    [[ $path == /* && -e $path ]] || continue
    [[ ! $path -ef $machine$path ]] || continue # within what was mounted
    # An index of files has its packages beside it.
    [[ $word != file://* ]] || path=$(dirname "$path")
    if [[ -d $path ]]; then mkdir -p "$machine$path"; else mkdir -p "$machine$(dirname "$path")" && touch "$machine$path"; fi
    mount --bind "$path" "$machine$path"
    mount -o remount,bind,ro "$machine$path"
done
cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"

as() { # NAME HOME COMMAND...: as that user, with nothing of this environment
    local name=$1 home=$2
    shift 2
    chroot --userspec="$name" "$machine" /usr/bin/env -i "HOME=$home" "USER=$name" LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${settings[@]}" \
        sh -c 'cd "$HOME" && exec "$@"' sh "$@"
}

failed=0
for name in $USERS; do
    home=$([[ $name == root ]] && echo /root || echo "/home/$name")
    [[ $name == root ]] || chroot "$machine" useradd --create-home "$name"
    git clone --quiet --no-hardlinks . "$machine$home/attention-zoo"
    chroot "$machine" chown -R "$name": "$home/attention-zoo"
    for command in $COMMANDS; do
        log=$LOGS/$name-$command.log began=$SECONDS status=0
        as "$name" "$home" make -C attention-zoo "$command" > "$log" 2>&1 < /dev/null || status=$?
        echo "make $command as $name: exit status $status after $((SECONDS - began)) s"
        grep -E '^skipped |^[0-9]+ (passed|failed)|^(FAILED|ERROR) ' "$log" | sed 's/^/    /' || true
        [[ $status == 0 ]] || failed=1
    done
    rm -rf --one-file-system "${machine:?}$home/attention-zoo"
done
echo "what they printed: $LOGS"
exit $failed
