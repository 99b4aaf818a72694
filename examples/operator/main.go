// Command operator runs each shared App as a Deployment in every cluster. It runs in
// every member cluster of an Atoll and talks only to that member's API server, which
// serves shared and local objects side by side.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/atoll-dev/atoll/coordination"
)

const namespace = "app-operator" // of the operator and its leases
const clusterLabel = "apps.example.com/cluster"

var leaseVersion = coordination.LeaseResource.GroupVersion()

// owner returns the field manager of a cluster or of the leader.
func owner(of string) client.FieldOwner { return client.FieldOwner("app-operator-" + of) }

func main() {
	cluster := flag.String("cluster", "", "name under which this cluster joined Atoll")
	setup := flag.Bool("install", false, "install the shared lease and the fence as an administrator of Atoll, and exit")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	ctx, cfg := ctrl.SetupSignalHandler(), ctrl.GetConfigOrDie()
	do := func() error { return run(ctx, cfg, *cluster) }
	if *setup {
		do = func() error { return install(ctx, cfg) }
	}
	if err := do(); err != nil {
		klog.ErrorS(err, "operator stopped")
		os.Exit(1)
	}
}

func install(ctx context.Context, cfg *rest.Config) error {
	return errors.Join(coordination.Install(ctx, cfg), coordination.InstallFence(ctx, cfg, coordination.Rules{
		Lease:           types.NamespacedName{Namespace: namespace, Name: "leader"},
		Resources:       []schema.GroupResource{{Group: appVersion.Group, Resource: "apps"}},
		ServiceAccounts: []types.NamespacedName{{Namespace: namespace, Name: "app-operator"}},
	}))
}

func run(ctx context.Context, cfg *rest.Config, cluster string) error {
	identity, err := coordination.Identity(cluster)
	if err != nil {
		return err
	}
	lock, err := coordination.NewLock(cfg, namespace, "leader", identity)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(appVersion, &App{}, &AppList{})
	scheme.AddKnownTypes(leaseVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{}) // has the fields of coordination.k8s.io's
	metav1.AddToGroupVersion(scheme, appVersion)
	metav1.AddToGroupVersion(scheme, leaseVersion)
	manager, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                              scheme,
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock, // shared by all clusters
		LeaderElectionReleaseOnCancel:       true,
		RetryPeriod:                         new(400 * time.Millisecond), // so an expired lease is acquired within 2 s
		Metrics:                             server.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{namespace: {}}},
		}},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	clusters := &Clusters{Client: manager.GetClient(), self: cluster}
	clusters.alive.Store(new([]string))
	err = errors.Join(
		appsv1.AddToScheme(scheme),
		manager.Add(clusters),
		ctrl.NewControllerManagedBy(manager).Named("local").
			For(&App{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).Owns(&appsv1.Deployment{}).
			WithOptions(controller.Options{NeedLeaderElection: new(false)}).
			Complete(reconcile.AsReconciler(manager.GetClient(), &Local{manager.GetClient(), cluster})),
		ctrl.NewControllerManagedBy(manager).Named("leader").For(&App{}).
			Complete(reconcile.AsReconciler(manager.GetClient(), &Leader{manager.GetClient(), clusters, lock, stop})),
	)
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
