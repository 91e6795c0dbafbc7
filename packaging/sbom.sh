#!/bin/sh
# Says what a built program consists of, from the program itself (`go version -m`): a CycloneDX list of the modules, and their licences.
# Usage: packaging/sbom.sh PROGRAM DIRECTORY   The modules are looked for in the module cache.
set -eu
program=$1 out=$2
go=${GO:-go}
cache=$($go env GOMODCACHE)
mkdir -p "$out"
name=$(basename "$program")
modules=$out/.modules
$go version -m "$program" | awk '$1 == "dep" { print $2, $3, $4 }' >"$modules"
toolchain=$($go version "$program" | awk '{ print $NF }')
{
	printf '{\n "bomFormat": "CycloneDX",\n "specVersion": "1.5",\n "version": 1,\n'
	printf ' "metadata": {"component": {"type": "application", "name": "%s"}, "properties": [{"name": "toolchain", "value": "%s"}]},\n' "$name" "$toolchain"
	printf ' "components": [\n'
	awk '{ printf "%s  {\"type\": \"library\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"pkg:golang/%s@%s\", \"properties\": [{\"name\": \"go.sum\", \"value\": \"%s\"}]}", (NR > 1 ? ",\n" : ""), $1, $2, $1, $2, $3 }
		END { print "" }' "$modules"
	printf ' ]\n}\n'
} >"$out/$name.cdx.json"
licences=$out/THIRD-PARTY-LICENSES.txt
printf 'Licences of what is linked into %s. The Go standard library (%s) is under the BSD licence of the Go authors.\n' "$name" "$toolchain" >"$licences"
missing=0
while read -r module version _; do
	# The cache writes a capital letter as ! and the small one.
	dir=$cache/$(printf %s "$module@$version" | sed 's/[A-Z]/!\L&/g')
	found=0
	for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/NOTICE*; do
		test -f "$file" || continue
		found=1
		printf '\n==== %s %s: %s\n\n' "$module" "$version" "$(basename "$file")" >>"$licences"
		cat "$file" >>"$licences"
	done
	if test $found = 0; then
		echo "sbom: no licence in $module $version ($dir)" >&2
		missing=1
	fi
done <"$modules"
rm "$modules"
exit $missing
