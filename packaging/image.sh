#!/bin/sh
# Lays out the context of packaging/Dockerfile from programs that are built already and makes the image of it.
# Usage: packaging/image.sh NAME DIRECTORY [BIN]   BIN (default bin) has etcd-warden, etcd, etcdctl and etcdutl, all static.
set -eu
name=$1 out=$2 bin=${3:-bin}
packaging=$(dirname "$0")
for program in etcd-warden etcd etcdctl etcdutl; do
	test -x "$bin/$program" || { echo "image: no $bin/$program: run make build tools" >&2; exit 1; }
	# A program that names a loader needs libraries, and the image has none.
	if head -c 4096 "$bin/$program" | grep -aq '/lib[0-9]*/ld-'; then
		echo "image: $bin/$program is not static: build it with CGO_ENABLED=0 (rm $bin/$program && make build tools)" >&2
		exit 1
	fi
done
rm -rf "$out"
root=$out/root
mkdir -p "$root/usr/local/bin" "$root/usr/libexec/etcd" "$root/etc/ssl/certs" "$root/etc/etcd-warden" "$root/tmp" "$out/state"
cp "$bin/etcd-warden" "$bin/etcdctl" "$bin/etcdutl" "$root/usr/local/bin/"
cp "$bin/etcd" "$root/usr/libexec/etcd/etcd"
ln -s etcd-warden "$root/usr/local/bin/etcd"
echo 'etcd:x:65532:65532:etcd:/var/lib/etcd:/sbin/nologin' >"$root/etc/passwd"
echo 'etcd:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# docker stop kills after 10 s: the grace is shorter, so that the end is by our own hand and with our own exit code.
echo 'stop-grace: 8s' >"$root/etc/etcd-warden/config.yaml"
certificates=${CA_CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
if test -r "$certificates"; then
	cp -L "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
else
	echo "image: no CA certificates ($certificates): https stores need AWS_CA_BUNDLE or ca-file=" >&2
fi
find "$root" -type d -exec chmod 0755 {} +
chmod 1777 "$root/tmp"
chmod 0755 "$root"/usr/local/bin/etcd-warden "$root"/usr/local/bin/etcdctl "$root"/usr/local/bin/etcdutl "$root"/usr/libexec/etcd/etcd
chmod 0644 "$root"/etc/passwd "$root"/etc/group "$root"/etc/nsswitch.conf "$root"/etc/etcd-warden/config.yaml
chmod 0700 "$out/state"
# The builder of the engine itself: no plugin to install, no front end to pull.
DOCKER_BUILDKIT=0 docker build --quiet --pull=false --network=none --tag "$name" --file "$packaging/Dockerfile" "$out"
