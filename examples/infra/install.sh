#!/bin/sh
# Builds the demo provider into a mirror in a directory, and installs it in the Atoll of kubectl's current context: a
# Provider with the package's digest, and a ProviderConfig that makes it keep its objects in that directory. The
# server must run on this machine, with --provider-mirror for the mirror.
#
#   examples/infra/install.sh DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: examples/infra/install.sh DIR}"
dir=$(cd "$1" && pwd -P)
mkdir -p "$dir/world"
# The provider of a server that root runs has a user of its own.
[ "$(id -u)" != 0 ] || chmod 777 "$dir/world"
go -C "$here/../../infra/testproviders" run ./mirror -dir "$dir/mirror" -only demo >/dev/null
digest=$(grep -o 'zh:[0-9a-f]*' "$dir/mirror/mirror.json")
sed "s|MIRROR|$dir/mirror/packed|; s|DIGEST|$digest|; s|WORLD|$dir/world|" "$here/provider.yaml" | kubectl apply -f -
kubectl wait --for=condition=Served --timeout=2m provider/demo
