package aggregate

import (
	"context"
	"errors"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// A server fills its watch cache for a custom resource when the first request for it
// arrives, and rejects watches that start earlier. If a member's server is lost, the
// next one may have had no such request yet and would reject all of the member's
// watches. So every server probes each shared kind as soon as it exists.
const (
	// maxConcurrentProbes is the number of kinds probed at a time.
	maxConcurrentProbes = 8
	// probeTimeout bounds one probe.
	probeTimeout = 5 * time.Second
	// probeRetryInterval is the pause before a kind that was not served yet is probed
	// again.
	probeRetryInterval = time.Second
)

// sharedKind is the part of a shared group's CRD that the directory keeps.
type sharedKind struct {
	metav1.ObjectMeta
	// version that is served, or "" if none is.
	version string
}

func (k *sharedKind) resource() schema.GroupVersionResource {
	gr := schema.ParseGroupResource(k.Name)
	return gr.WithVersion(k.version)
}

// trimCRD converts a CRD to a sharedKind.
func trimCRD(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	out := &sharedKind{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), Generation: u.GetGeneration()}}
	if !established(u) {
		return out, nil
	}
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["served"] == true {
			out.version, _ = version["name"].(string)
			break
		}
	}
	return out, nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "Established" {
			return condition["status"] == "True"
		}
	}
	return false
}

// Warm waits until all kinds that were shared when the directory started have been
// probed.
func (d *Directory) Warm(ctx context.Context) error {
	select {
	case <-d.warm:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keepWarm probes each shared kind, and again when kinds are added or changed, until
// ctx ends.
func (d *Directory) keepWarm(ctx context.Context) {
	asked := map[types.UID]int64{} // generation of the CRD
	for first := true; ctx.Err() == nil; first = false {
		cold := d.probeKinds(ctx, asked)
		if first {
			close(d.warm)
		}
		var again <-chan time.Time
		if cold {
			again = d.clock.After(probeRetryInterval)
		}
		select {
		case <-ctx.Done():
		case <-d.probeSignal:
		case <-again:
		}
	}
}

// probeKinds probes the kinds that are not in probed. It reports whether some must be
// retried.
func (d *Directory) probeKinds(ctx context.Context, asked map[types.UID]int64) (cold bool) {
	var unasked []*sharedKind
	known := map[types.UID]bool{}
	for _, kind := range cached[sharedKind](d.crds) {
		known[kind.UID] = true
		if generation, ok := asked[kind.UID]; kind.version != "" && (!ok || generation != kind.Generation) {
			unasked = append(unasked, kind)
		}
	}
	maps.DeleteFunc(asked, func(uid types.UID, _ int64) bool { return !known[uid] })

	errs := make([]error, len(unasked))
	var all errgroup.Group
	all.SetLimit(maxConcurrentProbes)
	for i, kind := range unasked {
		all.Go(func() error {
			errs[i] = d.probe(ctx, kind.resource())
			return nil
		})
	}
	_ = all.Wait()
	for i, kind := range unasked {
		if errs[i] != nil {
			klog.V(2).InfoS("shared kind not served yet", "crd", kind.Name, "err", errs[i])
			cold = true
			continue
		}
		asked[kind.UID] = kind.Generation
	}
	return cold
}

// probe sends one request for a kind. Any answer of its server is enough, even a
// webhook's failure, except that the server does not know the kind or cannot serve.
func (d *Directory) probe(ctx context.Context, resource schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	// Served from the watch cache, for which this request waits.
	_, err := d.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1, ResourceVersion: "0"})
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &answer), apierrors.IsNotFound(err), apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err):
		return err
	}
	return nil
}

// notifyKinds is called for every change of a CRD.
func (d *Directory) notifyKinds() {
	select {
	case d.probeSignal <- struct{}{}:
	default: // a probe is already pending
	}
}
