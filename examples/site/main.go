// Command site is an ordinary operator for web sites, written for a single cluster. For
// each Site it creates a Deployment, a StatefulSet, a Pod and their dependencies, and
// waits for their status. It imports nothing of Atoll. With a kubeconfig of Atoll, it runs
// its sites on all member clusters without a change.
package main

import (
	"errors"
	"flag"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flag.Parse() // --kubeconfig
	ctrl.SetLogger(klog.Background())
	if err := run(); err != nil {
		klog.ErrorS(err, "operator stopped")
		os.Exit(1)
	}
}

func run() error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	scheme.AddKnownTypes(siteVersion, &Site{}, &SiteList{})
	metav1.AddToGroupVersion(scheme, siteVersion)
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                true,
		LeaderElectionID:              "site-operator",
		LeaderElectionNamespace:       "site-operator",
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).For(&Site{}).
		Owns(&corev1.ConfigMap{}).Owns(&corev1.Service{}).Owns(&corev1.Pod{}).
		Owns(&appsv1.Deployment{}).Owns(&appsv1.StatefulSet{}).Owns(&batchv1.Job{}).
		Complete(&Reconciler{manager.GetClient()})
	return errors.Join(err, manager.Start(ctrl.SetupSignalHandler()))
}
