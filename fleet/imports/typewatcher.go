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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// typeWatcher reads the types of one member: immediately when its CRDs change, and every minute
// for types that cannot be watched.
type typeWatcher struct {
	memberClients
	name string
	// state identifies the connection to the member that this watcher was created for.
	state string
	stop  context.CancelFunc

	crds      cache.SharedIndexInformer // metadata
	triggered chan struct{}
	watcherConfig
	documentTypes documentTypes

	mu           sync.Mutex
	seen         snapshot
	lastWatchErr error // last error of the CRD watch, until a request succeeds
}

// watcherConfig is shared by the watchers of one process.
type watcherConfig struct {
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
	complete bool
	// err is why the last attempt was incomplete; types is from before.
	err    error
	types  map[schema.GroupVersionResource]servedType
	digest string
	at     time.Time
}

// loadedCRD is one CRD as it was read.
type loadedCRD struct {
	version string // resource version
	group   string
	types   []servedType
}

// newTypeWatcher starts reading a member, until ctx ends or the watcher is stopped. It calls
// onChange after each read.
func newTypeWatcher(ctx context.Context, r watcherConfig, name string, w memberClients, state string, onChange func()) (*typeWatcher, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &typeWatcher{memberClients: w, watcherConfig: r, name: name, state: state, stop: stop, triggered: make(chan struct{}, 1), documentTypes: documentTypes{},
		crds: fleet.ListBounds{Max: maxTypes, Slim: slimType}.MetadataInformer(w.meta, crdResource),
	}
	err := errors.Join(
		p.crds.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { p.setWatchError(err); p.trigger() }))
	if err == nil {
		_, err = p.crds.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { p.trigger() }, DeleteFunc: func(any) { p.trigger() }, UpdateFunc: func(_, _ any) { p.trigger() }})
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch the types of cluster %s: %w", name, err)
	}
	r.running.Go(func() { p.crds.RunWithContext(ctx) })
	r.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), p.crds.HasSynced) {
			p.trigger() // also if there are no CRDs
		}
	})
	r.running.Go(func() { p.run(ctx, onChange) })
	return p, nil
}

// maxTypes is how many types a member may have.
const maxTypes = 20_000

// slimType keeps what identifies a state of a type.
func slimType(obj runtime.Object) runtime.Object {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}}
}

// trigger causes the member to be read soon.
func (p *typeWatcher) trigger() {
	select {
	case p.triggered <- struct{}{}:
	default:
	}
}

// setWatchError records an error of the watch. Many are harmless: watches end.
func (p *typeWatcher) setWatchError(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWatchErr = err
}

// watchError returns the recorded error if it still occurs.
func (p *typeWatcher) watchError(ctx context.Context) error {
	p.mu.Lock()
	err := p.lastWatchErr
	p.mu.Unlock()
	if err == nil || !p.crds.HasSynced() {
		return err
	}
	if err := withTimeout(ctx, func(ctx context.Context) error {
		_, err := p.meta.Resource(crdResource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}); err != nil {
		return fmt.Errorf("watch the CustomResourceDefinitions: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWatchErr = nil
	return nil
}

// snapshot returns the current state. It must not be modified.
func (p *typeWatcher) snapshot() snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// run reads until ctx ends.
func (p *typeWatcher) run(ctx context.Context, onChange func()) {
	known := map[string]loadedCRD{}
	ticker := p.clock.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		p.refresh(ctx, known, p.clock.Now())
		if ctx.Err() != nil {
			return
		}
		onChange()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-p.triggered:
			// A new CRD changes several times before it is served.
			select {
			case <-ctx.Done():
				return
			case <-p.clock.After(batchWindow):
			}
		}
	}
}

// refresh reads the changed types. A type that cannot be read keeps its previous state.
func (p *typeWatcher) refresh(ctx context.Context, known map[string]loadedCRD, now time.Time) {
	errCRDs := p.watchError(ctx)
	if !p.crds.HasSynced() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen.err = errCRDs
		return
	}
	errCRDs = errors.Join(errCRDs, p.refreshCRDs(ctx, known))
	types := map[schema.GroupVersionResource]servedType{}
	byCRD := map[string]bool{}
	for _, crd := range known {
		byCRD[crd.group] = true
		for _, t := range crd.types {
			types[t.spec.Resource()] = t
		}
	}
	others, errDocuments := p.refreshDocuments(ctx, byCRD, types)
	trouble := errors.Join(errCRDs, errDocuments)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.err = trouble
	if trouble == nil {
		p.seen = snapshot{complete: true, types: types, digest: digestTypes(types, others), at: now}
	}
}

// refreshCRDs brings known in line with the member's CRDs.
func (p *typeWatcher) refreshCRDs(ctx context.Context, known map[string]loadedCRD) error {
	wanted, there := map[string]bool{}, map[string]bool{}
	for _, m := range (controllers.Cache[metav1.PartialObjectMetadata]{Informer: p.crds}).All() {
		there[m.Name] = true
		if known[m.Name].version != m.ResourceVersion {
			wanted[m.Name] = true
		}
	}
	maps.DeleteFunc(known, func(name string, _ loadedCRD) bool { return !there[name] })
	if len(wanted) == 0 {
		return nil
	}
	var bad error
	err := p.readCRDs(ctx, wanted, func(crd *apiextensionsv1.CustomResourceDefinition) {
		one := loadedCRD{version: crd.ResourceVersion, group: crd.Spec.Group}
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
func digestTypes(types map[schema.GroupVersionResource]servedType, others map[schema.GroupVersion]string) string {
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
type reportedError string

func (t reportedError) Error() string { return string(t) }

// explain returns the cause and the remedy for a member that cannot be read, for users.
func explain(err error, cluster string) string {
	if reported := reportedError(""); errors.As(err, &reported) {
		return string(reported)
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
