#!/bin/sh
# Creates the user that etcd runs as. Nothing is enabled or started: that is a decision of the operator.
set -e
getent group etcd >/dev/null || groupadd --system etcd
getent passwd etcd >/dev/null || useradd --system --gid etcd --home-dir /var/lib/etcd --no-create-home --shell /usr/sbin/nologin etcd
if test -d /run/systemd/system; then
	systemctl daemon-reload
fi
