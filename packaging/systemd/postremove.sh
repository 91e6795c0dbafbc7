#!/bin/sh
# Data, settings and the user stay.
set -e
if test -d /run/systemd/system; then
	systemctl daemon-reload
fi
