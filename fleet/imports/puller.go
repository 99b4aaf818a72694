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

// puller reads the types of one member: at once when its CRDs change, and every
// minute what cannot be watched.
type puller struct {
	way
	name string
	// state is what it was made for: a way to the member that answers.
	state string
	stop  context.CancelFunc

	crds  cache.SharedIndexInformer // metadata
	again chan struct{}
	reading
	whole wholeTypes

	mu    sync.Mutex
	seen  snapshot
	watch error // the last of the watch of CRDs, until it is known to be over
}

// reading is what pullers have in common that run in one place.
type reading struct {
	clock  clock.WithTicker
	fields *Fields
	// inFull tells whether a policy names a group in full.
	inFull func(group string) bool
	// running counts what they started.
	running *sync.WaitGroup
}

// snapshot is what was last read of a member's types.
type snapshot struct {
	// whole: all of it was read; what is not here the member does not serve.
	whole bool
	// trouble is why the last attempt read less, and types is from before.
	trouble error
	types   map[schema.GroupVersionResource]served
	digest  string
	at      time.Time
}

// pulled is one CRD as it was read.
type pulled struct {
	version string // resource version
	group   string
	types   []served
}

// newPuller starts reading a member, until ctx ends or it is stopped. changed hears of
// news.
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

// wake has the member read soon.
func (p *puller) wake() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// say remembers an error of the watch. Many are of no consequence: watches end.
func (p *puller) say(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = err
}

// said gives that error if it is still so.
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

// snapshot gives what is known. Nobody changes what is in it.
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
			// A CRD that is made changes several times before it is served.
			select {
			case <-ctx.Done():
				return
			case <-p.clock.After(gather):
			}
		}
	}
}

// pull reads what has changed. What cannot be read is as it was.
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

// pullCRDs brings known in line with the member's CRDs.
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

// isServed tells whether the member serves a CRD. One that is being deleted still has
// objects, but takes no new ones.
func isServed(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp == nil && slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}

// ownGroup tells whether a group is Atoll's: a member that is itself a control plane
// has them, and they mean the clusters below it.
func ownGroup(group string) bool {
	return group == v1alpha1.Group || group == "infra.atoll.dev" || group == "tenancy.atoll.dev" || strings.HasSuffix(group, ".providers.atoll.dev")
}

// digestTypes tells one state of a member's types from another.
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

// reportedTrouble is trouble as a syncer tells it: in the words of explain already.
type reportedTrouble string

func (t reportedTrouble) Error() string { return string(t) }

// explain says what to do about a member that cannot be read, for people.
func explain(err error, cluster string) string {
	if told := reportedTrouble(""); errors.As(err, &told) {
		return string(told)
	}
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("the identity with which cluster %s joined may not read its types (%v): grant it get, list and watch of customresourcedefinitions.apiextensions.k8s.io", cluster, err)
	}
	return fmt.Sprintf("the types of cluster %s cannot be read and are as they were last known; it is tried again every minute: %v", cluster, err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
