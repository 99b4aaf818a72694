package imports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// typeWatcher reads the types of one member: immediately when its CRDs change, and every minute
// for types that cannot be watched.
type puller struct {
	way
	name string
	// state identifies the connection to the member that this watcher was created for.
	state string
	stop  context.CancelFunc

	crds  cache.SharedIndexInformer // metadata
	again chan struct{}
	reading
	whole wholeTypes

	mu    sync.Mutex
	seen  snapshot
	watch error // last error of the CRD watch, until a request succeeds
}

// watcherConfig is shared by the watchers of one process.
type reading struct {
	clock  clock.WithTicker
	fields *Fields
	// inFull reports whether a policy names a group in full.
	inFull func(group string) bool
	// running counts the goroutines of the watchers.
	running *sync.WaitGroup
}

// snapshot is the last read state of a member's types.
type snapshot struct {
	// complete is set once everything was read; the member does not serve types that are
	// missing here.
	whole bool
	// err is why the last attempt was incomplete; types is from before.
	trouble error
	types   map[schema.GroupVersionResource]served
	digest  string
	at      time.Time
}

// loadedCRD is one CRD as it was read.
type pulled struct {
	version string // resource version
	group   string
	types   []served
}

// newTypeWatcher starts reading a member, until ctx ends or the watcher is stopped. It calls
// onChange after each read.
func newPuller(ctx context.Context, r reading, name string, w way, state string, changed func()) (*puller, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &puller{way: w, reading: r, name: name, state: state, stop: stop, again: make(chan struct{}, 1), whole: wholeTypes{},
		crds: metadatainformer.NewFilteredMetadataInformer(w.meta, crdResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
	}
	err := errors.Join(
		p.crds.SetTransform(slimMetadata),
		p.crds.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { p.say(err); p.wake() }))
	if err == nil {
		_, err = p.crds.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { p.wake() }, DeleteFunc: func(any) { p.wake() }, UpdateFunc: func(_, _ any) { p.wake() }})
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch the types of cluster %s: %w", name, err)
	}
	r.running.Go(func() { p.crds.RunWithContext(ctx) })
	r.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), p.crds.HasSynced) {
			p.wake() // also if there are no CRDs
		}
	})
	r.running.Go(func() { p.run(ctx, changed) })
	return p, nil
}

func slimMetadata(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}}, nil
}

// trigger causes the member to be read soon.
func (p *puller) wake() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// setWatchError records an error of the watch. Many are harmless: watches end.
func (p *puller) say(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = err
}

// watchError returns the recorded error if it still occurs.
func (p *puller) said(ctx context.Context) error {
	p.mu.Lock()
	err := p.watch
	p.mu.Unlock()
	if err == nil || !p.crds.HasSynced() {
		return err
	}
	if err := within(ctx, func(ctx context.Context) error {
		_, err := p.meta.Resource(crdResource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}); err != nil {
		return fmt.Errorf("watch the CustomResourceDefinitions: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = nil
	return nil
}

// snapshot returns the current state. It must not be modified.
func (p *puller) snapshot() snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// run reads until ctx ends.
func (p *puller) run(ctx context.Context, changed func()) {
	known := map[string]pulled{}
	ticker := p.clock.NewTicker(poll)
	defer ticker.Stop()
	for {
		p.pull(ctx, known, p.clock.Now())
		if ctx.Err() != nil {
			return
		}
		changed()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-p.again:
			// A new CRD changes several times before it is served.
			select {
			case <-ctx.Done():
				return
			case <-p.clock.After(gather):
			}
		}
	}
}

// refresh reads the changed types. A type that cannot be read keeps its previous state.
func (p *puller) pull(ctx context.Context, known map[string]pulled, now time.Time) {
	errCRDs := p.said(ctx)
	if !p.crds.HasSynced() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen.trouble = errCRDs
		return
	}
	errCRDs = errors.Join(errCRDs, p.pullCRDs(ctx, known))
	types := map[schema.GroupVersionResource]served{}
	byCRD := map[string]bool{}
	for _, crd := range known {
		byCRD[crd.group] = true
		for _, t := range crd.types {
			types[t.spec.Resource()] = t
		}
	}
	others, errDocuments := p.pullDocuments(ctx, byCRD, types)
	trouble := errors.Join(errCRDs, errDocuments)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.trouble = trouble
	if trouble == nil {
		p.seen = snapshot{whole: true, types: types, digest: digestTypes(types, others), at: now}
	}
}

// refreshCRDs brings known in line with the member's CRDs.
func (p *puller) pullCRDs(ctx context.Context, known map[string]pulled) error {
	wanted, there := map[string]bool{}, map[string]bool{}
	for _, m := range list[metav1.PartialObjectMetadata](p.crds) {
		there[m.Name] = true
		if known[m.Name].version != m.ResourceVersion {
			wanted[m.Name] = true
		}
	}
	maps.DeleteFunc(known, func(name string, _ pulled) bool { return !there[name] })
	if len(wanted) == 0 {
		return nil
	}
	var bad error
	err := p.readCRDs(ctx, wanted, func(crd *apiextensionsv1.CustomResourceDefinition) {
		one := pulled{version: crd.ResourceVersion, group: crd.Spec.Group}
		if isServed(crd) && !ownGroup(crd.Spec.Group) {
			types, err := fromCRD(crd)
			if err != nil {
				bad = errors.Join(bad, err)
				return
			}
			one.types = types
		}
		known[crd.Name] = one
	})
	return errors.Join(err, bad)
}

// isServed reports whether a CRD is served. A CRD that is being deleted still has objects, but
// accepts no new ones.
func isServed(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp == nil && slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}

// ownGroup reports whether a group is Atoll's own. A member that is itself a control plane
// serves these groups, but there they describe its own clusters.
func ownGroup(group string) bool {
	return group == v1alpha1.Group || group == "infra.atoll.dev" || group == "tenancy.atoll.dev" || strings.HasSuffix(group, ".providers.atoll.dev")
}

// digestTypes returns a digest of a member's types.
func digestTypes(types map[schema.GroupVersionResource]served, others map[schema.GroupVersion]string) string {
	var lines []string
	for gvr, t := range types {
		lines = append(lines, gvr.String()+" "+t.digest+t.approved)
	}
	for gv, digest := range others {
		lines = append(lines, gv.String()+" "+digest)
	}
	slices.Sort(lines)
	sum := sha256.New()
	for _, l := range lines {
		fmt.Fprintln(sum, l)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// reportedError is an error that a syncer reported: it is formatted by explain already.
type reportedTrouble string

func (t reportedTrouble) Error() string { return string(t) }

// explain returns the cause and the remedy for a member that cannot be read, for users.
func explain(err error, cluster string) string {
	if told := reportedTrouble(""); errors.As(err, &told) {
		return string(told)
	}
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("the identity with which cluster %s joined may not read its types (%v): grant it get, list and watch of customresourcedefinitions.apiextensions.k8s.io", cluster, err)
	}
	return fmt.Sprintf("the types of cluster %s cannot be read; showing the last known ones and retrying every minute: %v", cluster, err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
