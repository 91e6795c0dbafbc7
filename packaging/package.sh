#!/bin/sh
# Builds the .deb and the .rpm into a directory. Usage: packaging/package.sh WARDEN NFPM VERSION DIRECTORY
set -eu
warden=$1 nfpm=$2 version=$3 out=$4
cd "$(dirname "$0")/.."
mkdir -p dist/package "$out"
cp "$warden" dist/package/etcd-warden
# A version must begin with a digit: a build without a tag is 0.0.0~COMMIT, older than any release.
case "$version" in
v[0-9]*) VERSION=${version#v} ;;
[0-9]*.*.*) VERSION=$version ;;
*) VERSION=0.0.0~$version ;;
esac
ARCH=$(${GO:-go} env GOARCH)
export VERSION ARCH
for packager in deb rpm; do
	"$nfpm" package --config packaging/nfpm.yaml --packager "$packager" --target "$out"
done
