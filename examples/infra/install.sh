#!/bin/sh
# Builds the demo provider into a mirror below a directory, and installs it in the Atoll that kubectl leads to: a
# Provider with the package's digest, and a ProviderConfig that has it work below that directory. The
# server has to run on this machine, and to be allowed to take packages from there (--provider-mirror).
#
#   examples/infra/install.sh DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?name a directory: examples/infra/install.sh DIR}"
dir=$(cd "$1" && pwd)
go -C "$here/../../infra/testproviders" run ./mirror -dir "$dir/mirror" -only demo >/dev/null
digest=$(grep -o 'zh:[0-9a-f]*' "$dir/mirror/mirror.json")
sed "s|MIRROR|$dir/mirror/packed|; s|DIGEST|$digest|; s|WORLD|$dir/world|" "$here/provider.yaml" | kubectl apply -f -
kubectl wait --for=condition=Served --timeout=2m provider/demo
