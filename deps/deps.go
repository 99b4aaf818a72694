//go:build deps

package deps

import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/ncruces/go-sqlite3"
	_ "github.com/ncruces/go-sqlite3/driver"
	_ "github.com/ncruces/go-sqlite3/vfs"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/cobra"
	_ "github.com/google/btree"
	_ "go.etcd.io/etcd/client/v3/kubernetes"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "golang.org/x/sync/errgroup"
	_ "google.golang.org/grpc/health/grpc_health_v1"
	_ "k8s.io/apiserver/pkg/storage/testing"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "k8s.io/kubectl/pkg/cmd"
	_ "k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"
	_ "k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	_ "k8s.io/apimachinery/pkg/util/strategicpatch"
	_ "sigs.k8s.io/kwok/pkg/kwok/controllers"
	_ "sigs.k8s.io/kwok/pkg/kwok/cmd"
	_ "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	_ "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	_ "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	_ "sigs.k8s.io/structured-merge-diff/v6/typed"
	_ "sigs.k8s.io/yaml"
)
