package main

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Local creates this cluster's Deployments for the shared Apps and reports their status.
type Local struct {
	client.Client
	cluster string
}

// Reconcile does so for one App. The App owns the Deployments, so each cluster's garbage
// collector deletes them with it.
func (l *Local) Reconcile(ctx context.Context, app *App) (ctrl.Result, error) {
	var status ClusterStatus
	err := l.deploy(ctx, app, &status)
	if err != nil {
		status.Message = err.Error()
	}
	if last, ok := app.Status.Clusters[l.cluster]; ok && last == status {
		return ctrl.Result{}, err
	}
	part := app.part()
	part.Status.Clusters = map[string]ClusterStatus{l.cluster: status}
	return ctrl.Result{}, errors.Join(err, l.Status().Patch(ctx, part, apply(part), owner(l.cluster), client.ForceOwnership))
}

func (l *Local) deploy(ctx context.Context, app *App, status *ClusterStatus) error {
	found, labels := &appsv1.Deployment{}, map[string]string{"apps.example.com/app": app.Name}
	if err := l.Get(ctx, client.ObjectKeyFromObject(app), found); client.IgnoreNotFound(err) != nil {
		return err
	} else if err == nil && !metav1.IsControlledBy(found, app) {
		return fmt.Errorf("deployment %s does not belong to this App: rename one of them", app.Name)
	}
	status.Ready = found.Status.ReadyReplicas
	// A cluster that has come back may have no assignment yet. Its Pods keep running until
	// then.
	replicas, assigned := app.Spec.Assignments[l.cluster]
	if !assigned {
		return nil
	}
	return l.Apply(ctx, appsapply.Deployment(app.Name, app.Namespace).
		WithOwnerReferences(metaapply.OwnerReference().WithController(true).
			WithAPIVersion(appVersion.String()).WithKind("App").WithName(app.Name).WithUID(app.UID)).
		WithSpec(appsapply.DeploymentSpec().
			WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(coreapply.PodSpec().
				WithContainers(coreapply.Container().WithName("app").WithImage(app.Spec.Image))))),
		owner(l.cluster), client.ForceOwnership)
}
