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

// A server begins to remember a custom resource's changes when the first request for it
// arrives, and ends watches that go back further. A member whose server was lost would
// find all its watches ended by the next one, which nobody had asked yet; so every server
// asks itself for each shared kind as soon as there is one.
const (
	// warmingAtOnce are the kinds that are asked for at a time.
	warmingAtOnce = 8
	// warmingPatience is how long an answer may take.
	warmingPatience = 5 * time.Second
	// warmingAgain is when a kind is asked for again that was not served yet.
	warmingAgain = time.Second
)

// sharedKind is what is known of a CRD of a shared group.
type sharedKind struct {
	metav1.ObjectMeta
	// version that is served, or "" while none is.
	version string
}

func (k *sharedKind) resource() schema.GroupVersionResource {
	gr := schema.ParseGroupResource(k.Name)
	return gr.WithVersion(k.version)
}

// slimCRD makes a sharedKind of a CRD.
func slimCRD(obj any) (any, error) {
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

// Warm waits until all kinds that members shared when the directory began to follow
// have been asked for.
func (d *Directory) Warm(ctx context.Context) error {
	select {
	case <-d.warm:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keepWarm asks for each shared kind, and for those that come or change, until ctx ends.
func (d *Directory) keepWarm(ctx context.Context) {
	asked := map[types.UID]int64{} // generation of the CRD
	for first := true; ctx.Err() == nil; first = false {
		cold := d.askForKinds(ctx, asked)
		if first {
			close(d.warm)
		}
		var again <-chan time.Time
		if cold {
			again = d.clock.After(warmingAgain)
		}
		select {
		case <-ctx.Done():
		case <-d.kinds:
		case <-again:
		}
	}
}

// askForKinds asks for those that are not in asked, and tells whether to try again
// some.
func (d *Directory) askForKinds(ctx context.Context, asked map[types.UID]int64) (cold bool) {
	var unasked []*sharedKind
	known := map[types.UID]bool{}
	for _, kind := range stored[sharedKind](d.crds) {
		known[kind.UID] = true
		if generation, ok := asked[kind.UID]; kind.version != "" && (!ok || generation != kind.Generation) {
			unasked = append(unasked, kind)
		}
	}
	maps.DeleteFunc(asked, func(uid types.UID, _ int64) bool { return !known[uid] })

	errs := make([]error, len(unasked))
	var all errgroup.Group
	all.SetLimit(warmingAtOnce)
	for i, kind := range unasked {
		all.Go(func() error {
			errs[i] = d.askFor(ctx, kind.resource())
			return nil
		})
	}
	_ = all.Wait()
	for i, kind := range unasked {
		if errs[i] != nil {
			klog.V(2).InfoS("A shared kind is not served yet", "crd", kind.Name, "err", errs[i])
			cold = true
			continue
		}
		asked[kind.UID] = kind.Generation
	}
	return cold
}

// askFor asks once for a kind. Whatever its server answers is enough, a webhook's
// failure, too, but not that it does not know the kind, or cannot answer anybody.
func (d *Directory) askFor(ctx context.Context, resource schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, warmingPatience)
	defer cancel()
	// From the cache, which this waits for.
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

// lookForKinds is told of every change of a CRD.
func (d *Directory) lookForKinds() {
	select {
	case d.kinds <- struct{}{}:
	default: // somebody is about to
	}
}
