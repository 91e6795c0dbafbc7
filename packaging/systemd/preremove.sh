#!/bin/sh
# Stops the service when the package goes, not when a new version comes: that is for the operator to time, as every restart
# of etcd is. Debian says remove or upgrade, RPM the number of versions that stay.
set -e
case "$1" in
remove | 0)
	if test -d /run/systemd/system; then
		systemctl disable --now etcd-warden.service || true
	fi
	;;
esac
