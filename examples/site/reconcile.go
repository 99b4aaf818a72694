package main

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const finalizer = "web.example.com/archive"

// Reconciler creates and updates the objects of a Site.
type Reconciler struct{ client.Client }

// Reconcile does so for one Site. A deleted Site is archived before its finalizer is removed.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	site := &Site{}
	if err := r.Get(ctx, req.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.archive(ctx, site)
	}
	if controllerutil.AddFinalizer(site, finalizer) {
		if err := r.Update(ctx, site); err != nil {
			return ctrl.Result{}, err
		}
	}
	p := partsOf(site)
	for _, object := range p.all() {
		_, err := controllerutil.CreateOrUpdate(ctx, r.Client, object, func() error {
			p.want(site, object)
			return controllerutil.SetControllerReference(site, object, r.Scheme())
		})
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("%T %s: %w", object, object.GetName(), err)
		}
	}
	return ctrl.Result{}, r.report(ctx, site, p)
}

// report writes the state of the parts to the Site's status.
func (r *Reconciler) report(ctx context.Context, site *Site, p *parts) error {
	before := site.DeepCopyObject().(*Site)
	site.Status.ReadyReplicas = p.web.Status.ReadyReplicas
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", ObservedGeneration: site.Generation}
	if why := p.unready(site); why != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Waiting", why
	}
	meta.SetStatusCondition(&site.Status.Conditions, ready)
	return r.Status().Patch(ctx, site, client.MergeFrom(before))
}

// unready returns the reason why a Site is not ready, or "".
func (p *parts) unready(site *Site) string {
	switch {
	case p.web.Status.ObservedGeneration < p.web.Generation, p.web.Status.UpdatedReplicas < site.Spec.Replicas,
		p.web.Status.AvailableReplicas != site.Spec.Replicas:
		return fmt.Sprintf("%d of %d replicas are available", p.web.Status.AvailableReplicas, site.Spec.Replicas)
	case p.cache.Status.ReadyReplicas != 1:
		return "the cache is not ready"
	}
	for _, c := range p.probe.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "the probe is not ready"
}

// archive runs a Job to completion and then removes the finalizer. The garbage collector
// deletes the objects that the Site owns.
func (r *Reconciler) archive(ctx context.Context, site *Site) error {
	if !controllerutil.ContainsFinalizer(site, finalizer) {
		return nil
	}
	job := &batchv1.Job{}
	err := r.Get(ctx, client.ObjectKey{Namespace: site.Namespace, Name: site.Name + "-archive"}, job)
	if apierrors.IsNotFound(err) {
		job = archiveJob(site)
		if err := controllerutil.SetControllerReference(site, job, r.Scheme()); err != nil {
			return err
		}
		return r.Create(ctx, job)
	}
	if err != nil {
		return err
	}
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			controllerutil.RemoveFinalizer(site, finalizer)
			return client.IgnoreNotFound(r.Update(ctx, site))
		}
	}
	return nil // the Job's completion triggers another Reconcile
}
