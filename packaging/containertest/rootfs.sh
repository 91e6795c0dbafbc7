#!/bin/sh
# Makes a Debian with a real systemd as its init, for the systemd test. Usage: rootfs.sh FILE.tar   (as root; needs debootstrap)
set -eu
out=$1
test ! -e "$out" || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=systemd,dbus,procps "${SUITE:-bookworm}" "$work/root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" "$work/root/usr/share/doc" "$work/root/usr/share/locale"
mkdir -p "$(dirname "$out")"
tar -C "$work/root" -cf "$out.part" .
mv "$out.part" "$out"
