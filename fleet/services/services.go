// Package services exports Services to all clusters, as the Multi-Cluster Services API describes it
// (multicluster.x-k8s.io): for each ServiceExport it keeps a ServiceImport and the Service that is derived from it, and the
// conditions of the export. Package multicluster decides about them.
//
// Clusters get both, and the EndpointSlices, as they get any other object. The syncers of the exporting clusters write the
// EndpointSlices through their views, once the controller has marked the binding of the Service.
package services

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// FieldManager owns ServiceImports, derived Services, and the conditions of ServiceExports.
const FieldManager = "atoll-services"

const (
	workers = 4
	// batchWindow is how long an event is delayed so that others of the same Service are batched: clusters report one by one.
	batchWindow = 50 * time.Millisecond
)

type controller struct {
	*fleet.Session
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName] // ServiceExports
	exports controllers.Cache[mcsv1beta1.ServiceExport]
	imports controllers.Cache[mcsv1beta1.ServiceImport]
}

func serviceKind() schema.GroupKind { return schema.GroupKind{Kind: "Service"} }

func sliceKind() schema.GroupKind {
	return schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, session *fleet.Session) error {
	if _, served := session.Kinds.Get(serviceKind()); !served {
		<-ctx.Done() // a control plane without workloads has no Services
		return nil
	}
	c := &controller{Session: session,
		exports: controllers.NewCache[mcsv1beta1.ServiceExport](session.Dynamic, multicluster.ExportResource(), controllers.CacheOptions{}),
		imports: controllers.NewCache[mcsv1beta1.ServiceImport](session.Dynamic, multicluster.ImportResource(), controllers.CacheOptions{}),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "fleet_services", Clock: session.Clock})}
	defer c.queue.ShutDown()
	group, ctx := errgroup.WithContext(ctx)
	for _, informer := range []cache.SharedIndexInformer{c.exports.Informer, c.imports.Informer} {
		group.Go(func() error { informer.RunWithContext(ctx); return nil })
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.exports.Informer.HasSynced, c.imports.Informer.HasSynced) {
		return group.Wait()
	}
	// Their events come after the caches are filled: a ServiceExport that is not in them does not exist.
	if err := c.listen(); err != nil {
		return fmt.Errorf("services: watch the control plane: %w", err)
	}
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "services", c.reconcile), c.onFailure)
	return group.Wait()
}

func (c *controller) enqueue(namespace, name string) {
	c.queue.AddAfter(types.NamespacedName{Namespace: namespace, Name: name}, batchWindow)
}

// enqueueOwner queues the ServiceExport that an object was made of.
func (c *controller) enqueueOwner(obj metav1.Object) {
	if name := obj.GetLabels()[mcsv1beta1.LabelServiceName]; name != "" && obj.GetLabels()[v1alpha1.ImportedLabel] == "true" {
		c.enqueue(obj.GetNamespace(), name)
	}
}

func (c *controller) listen() error {
	object := func(was, is metav1.Object) {
		for _, obj := range []metav1.Object{was, is} {
			if obj != nil {
				c.enqueueOwner(obj)
			}
		}
	}
	return errors.Join(
		c.exports.OnChange(func(was, is *mcsv1beta1.ServiceExport) { c.enqueueEither(meta(was), meta(is)) }),
		c.imports.OnChange(func(was, is *mcsv1beta1.ServiceImport) { object(meta(was), meta(is)) }),
		c.Objects.OnChange(sliceKind(), object),
		c.Objects.OnChange(serviceKind(), func(was, is metav1.Object) {
			object(was, is)
			c.enqueueEither(was, is)
		}),
		c.Bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
			b := is
			if is == nil {
				b = was
			}
			if b.Spec.Resource.GroupVersionKind().GroupKind() != serviceKind() {
				return
			}
			if multicluster.MayBeDerived(b.Spec.Resource.Name) {
				if derived, ok := c.Objects.Metadata(serviceKind(), b.ObjectName()); ok {
					c.enqueueOwner(derived)
				}
			}
			if _, exported := c.exports.Get(b.ObjectName().String()); exported || b.Annotations[v1alpha1.ExportedAnnotation] != "" {
				c.enqueue(b.Namespace, b.Spec.Resource.Name)
			}
		}),
	)
}

// meta converts a pointer that may be nil to an interface that then is nil as well.
func meta[T any, P interface {
	*T
	metav1.Object
}](p P) metav1.Object {
	if p == nil {
		return nil
	}
	return p
}

// enqueueEither queues the ServiceExport of a name, if there is or was one.
func (c *controller) enqueueEither(was, is metav1.Object) {
	obj := is
	if is == nil {
		obj = was
	}
	if _, isExport := obj.(*mcsv1beta1.ServiceExport); !isExport {
		if _, exported := c.exports.Get(obj.GetNamespace() + "/" + obj.GetName()); !exported {
			return
		}
	}
	c.enqueue(obj.GetNamespace(), obj.GetName())
}

func (c *controller) onFailure(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		c.Log.Warn("reconcile of a service export failed; retrying", "export", key.String(), "error", err)
	}
	return true
}
