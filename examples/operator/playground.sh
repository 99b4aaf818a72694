#!/usr/bin/env bash
# Installs the operator in a running playground (its directory is the argument, .demo by
# default) and runs one operator for each cluster until Ctrl-C.
set -euo pipefail
dir=$(realpath "${1:-.demo}")
cd "$(dirname "${BASH_SOURCE[0]}")"
PATH=$PATH:$(realpath ../../bin)
command -v kubectl >/dev/null || make -C ../.. kubectl
[[ -e $dir/ready ]] || { echo "no playground runs in $dir: start one with 'make demo', or pass its directory" >&2; exit 1; }
umask 077

go build -o "$dir/operator" .
servers=("$dir"/atoll*.kubeconfig) # all equal
kubectl --kubeconfig "${servers[0]}" apply -f config/atoll.yaml
"$dir/operator" --install --kubeconfig "${servers[0]}"
kubectl --kubeconfig "${servers[0]}" wait sharedapi/apps.example.com --for=condition=Ready --timeout=60s

# An operator exits when another one takes over the lead. Restart it, as a Deployment would.
keep_running() {
  trap 'kill "$pid"; exit' TERM
  while :; do
    "$dir/operator" "$@" & pid=$!
    wait "$pid" || sleep 1
  done
}
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
trap exit INT TERM
for cluster in east west north; do
  kubectl --kubeconfig "$dir/$cluster.kubeconfig" apply -f config/member.yaml >/dev/null
  # The token of a service account, as a Pod has it.
  kubeconfig=$dir/$cluster-operator.kubeconfig
  cp "$dir/$cluster.kubeconfig" "$kubeconfig"
  kubectl --kubeconfig "$kubeconfig" create token app-operator --namespace app-operator --duration 24h >"$dir/$cluster-operator.token"
  kubectl --kubeconfig "$kubeconfig" config set users.operator.tokenFile "$dir/$cluster-operator.token" >/dev/null
  kubectl --kubeconfig "$kubeconfig" config set-context --current --user operator >/dev/null
  keep_running --cluster "$cluster" --kubeconfig "$kubeconfig" 2>>"$dir/logs/$cluster-operator.log" &
  echo "the operator runs in $cluster; its log is $dir/logs/$cluster-operator.log"
done
wait
