package aggregate

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// parting is how long a member may still reach a group that was withdrawn, while
// its API server announces it: a kind that is announced and refused holds up the
// member's garbage collector. It is no more than the time that it takes to remove
// the APIServices from a member that answers.
const parting = 10 * time.Second

// Directory follows what the workspace says of its members and of what they
// share: the Clusters, the SharedAPIs, and the marks on CRDs of shared groups. It
// implements Members.
type Directory struct {
	clock  clock.Clock
	client dynamic.Interface

	clusters, shared, crds cache.SharedIndexInformer

	changed chan struct{} // holds one: look again
	known   chan struct{} // closed when page is not empty any more
	kinds   chan struct{} // holds one: ask for shared kinds again
	warm    chan struct{} // closed when all were asked for once
	page    atomic.Pointer[page]
}

// page is what the directory says at one time. It does not change.
type page struct {
	roster   *Roster
	replaced chan struct{}
	members  []Member
	// refused by the roster, by name of the member.
	refused map[string]error
	// terms on which a group is exposed, by member and group.
	terms map[string]map[string]*v1alpha1.SharedAPISpec
	// groups that are shared, or have been.
	groups map[string]bool
}

// NewDirectory makes the directory of the workspace that cfg leads to. It knows
// nothing until Run.
func NewDirectory(cfg *rest.Config, clk clock.Clock) (*Directory, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of the workspace: %w", err)
	}
	return directoryOver(client, clk)
}

func directoryOver(client dynamic.Interface, clk clock.Clock) (*Directory, error) {
	d := &Directory{
		clock: clk, client: client,
		changed: make(chan struct{}, 1), known: make(chan struct{}),
		kinds: make(chan struct{}, 1), warm: make(chan struct{}),
	}
	d.page.Store(&page{replaced: make(chan struct{})})
	for _, f := range []struct {
		into      *cache.SharedIndexInformer
		resource  schema.GroupVersionResource
		only      func(*metav1.ListOptions)
		transform cache.TransformFunc
	}{
		{&d.clusters, v1alpha1.ClusterResource, nil, slimCluster},
		{&d.shared, v1alpha1.SharedAPIResource, nil, slimShared},
		{&d.crds, crdResource, func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.SharedLabel + "=true" }, slimCRD},
	} {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, f.resource, metav1.NamespaceAll, 0, cache.Indexers{}, f.only).Informer()
		if err := informer.SetTransform(f.transform); err != nil {
			return nil, err
		}
		look := func(any) {
			d.look()
			d.lookForKinds()
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: look, DeleteFunc: look, UpdateFunc: func(was, is any) {
				// Most news of a Cluster are heartbeats.
				if !reflect.DeepEqual(was, is) {
					look(is)
				}
			},
		}); err != nil {
			return nil, err
		}
		*f.into = informer
	}
	return d, nil
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Run follows the workspace until ctx ends. The workspace's types may be installed
// later: until then nobody is served.
func (d *Directory) Run(ctx context.Context) error {
	if err := d.awaitTypes(ctx); err != nil {
		return nil // ctx ended
	}
	var group wait.Group
	defer group.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{d.clusters, d.shared, d.crds} {
		group.StartWithContext(ctx, informer.RunWithContext)
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	group.StartWithContext(ctx, d.keepWarm)
	d.follow(ctx)
	return nil
}

// awaitTypes waits until the types are served. An informer would, too, but with
// pauses of up to half a minute.
func (d *Directory) awaitTypes(ctx context.Context) error {
	const interval = 100 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		for _, resource := range []schema.GroupVersionResource{v1alpha1.ClusterResource, v1alpha1.SharedAPIResource} {
			if _, err := d.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
				if !apierrors.IsNotFound(err) {
					klog.V(2).InfoS("Cannot read what is shared yet", "resource", resource.Resource, "err", err)
				}
				return false, nil
			}
		}
		return true, nil
	})
}

func (d *Directory) look() {
	select {
	case d.changed <- struct{}{}:
	default: // somebody is about to
	}
}

// follow turns the page whenever there is news.
func (d *Directory) follow(ctx context.Context) {
	parted := partings{}
	for {
		again := d.turn(parted)
		var later <-chan time.Time
		var timer clock.Timer
		if again > 0 {
			timer = d.clock.NewTimer(again)
			later = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-d.changed:
		case <-later:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// turn reads everything anew, and says when the next thing changes by itself.
func (d *Directory) turn(parted partings) (again time.Duration) {
	was := d.page.Load()
	shared := stored[v1alpha1.SharedAPI](d.shared)
	next := &page{
		roster: was.roster, replaced: was.replaced, refused: was.refused,
		terms:  map[string]map[string]*v1alpha1.SharedAPISpec{},
		groups: map[string]bool{},
	}
	for _, s := range shared {
		for _, group := range s.Spec.Groups {
			next.groups[group] = true
		}
	}
	for _, crd := range stored[sharedKind](d.crds) {
		if _, group, ok := strings.Cut(crd.Name, "."); ok {
			next.groups[group] = true
		}
	}
	clusters := stored[v1alpha1.Cluster](d.clusters)
	parted.forget(clusters)
	for _, c := range clusters {
		served := v1alpha1.SharedWith(c, shared)
		groups := map[string]bool{}
		next.terms[c.Name] = map[string]*v1alpha1.SharedAPISpec{}
		for group, by := range served {
			groups[group] = true
			next.terms[c.Name][group] = &by.Spec
		}
		for group, left := range parted.of(c.Name, served, announced(c.Name, shared), d.clock.Now()) {
			groups[group] = true
			if again == 0 || left < again {
				again = left
			}
		}
		if c.Status.FrontProxy == nil || len(groups) == 0 {
			continue
		}
		next.members = append(next.members, Member{Name: c.Name, FrontProxy: FrontProxy{
			CABundle:            c.Status.FrontProxy.CABundle,
			AllowedNames:        c.Status.FrontProxy.AllowedNames,
			UsernameHeaders:     c.Status.FrontProxy.UsernameHeaders,
			UIDHeaders:          c.Status.FrontProxy.UIDHeaders,
			GroupHeaders:        c.Status.FrontProxy.GroupHeaders,
			ExtraHeaderPrefixes: c.Status.FrontProxy.ExtraHeaderPrefixes,
		}, Groups: sortedKeys(groups)})
	}
	slices.SortFunc(next.members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	first := was.roster == nil
	replace := first || !reflect.DeepEqual(next.members, was.members)
	if replace {
		next.replaced = make(chan struct{})
		next.roster, next.refused = NewRoster(next.members, d.clock)
		for name, err := range next.refused {
			if before := was.refused[name]; before == nil || before.Error() != err.Error() {
				klog.ErrorS(err, "A cluster cannot be served what is exposed to it", "cluster", name)
			}
		}
	}
	d.page.Store(next)
	if replace {
		close(was.replaced)
	}
	if first {
		close(d.known)
	}
	return again
}

// Roster implements Members.
func (d *Directory) Roster() (*Roster, <-chan struct{}) {
	p := d.page.Load()
	return p.roster, p.replaced
}

// Terms are those on which a group is exposed to a member, if it is.
func (d *Directory) Terms(cluster, group string) (terms v1alpha1.SharedAPISpec, exposed bool) {
	spec, exposed := d.page.Load().terms[cluster][group]
	if !exposed {
		return terms, false
	}
	return *spec, true
}

// SharedGroups waits until it is known which groups members share, or have shared,
// and gives a function that tells, at any later time.
func (d *Directory) SharedGroups(ctx context.Context) (func(group string) bool, error) {
	select {
	case <-d.known:
		return func(group string) bool { return d.page.Load().groups[group] }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// partings remembers since when a member is without a group that it had: by its
// own clock, because nobody else needs to agree.
type partings map[[2]string]*time.Time

// of gives the groups that a member is still to reach, and for how long.
func (p partings) of(cluster string, served map[string]*v1alpha1.SharedAPI, announced map[string]bool, now time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for group := range served {
		p[[2]string{cluster, group}] = nil
	}
	for key, since := range p {
		group := key[1]
		switch {
		case key[0] != cluster || served[group] != nil:
		case !announced[group]:
			delete(p, key)
		case since == nil:
			p[key] = &now
			out[group] = parting
		default:
			if left := since.Add(parting).Sub(now); left > 0 {
				out[group] = left
			}
		}
	}
	return out
}

// forget drops members that are gone.
func (p partings) forget(but []*v1alpha1.Cluster) {
	for key := range p {
		if !slices.ContainsFunc(but, func(c *v1alpha1.Cluster) bool { return c.Name == key[0] }) {
			delete(p, key)
		}
	}
}

// announced are the groups that a member may still have APIServices for.
func announced(cluster string, all []*v1alpha1.SharedAPI) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		if entry, ok := s.Exposure(cluster); ok {
			for _, version := range entry.Versions {
				group, _, _ := strings.Cut(version, "/")
				out[group] = true
			}
		}
	}
	return out
}

func sortedKeys(set map[string]bool) []string {
	var out []string
	for key := range set {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func stored[T any](informer cache.SharedIndexInformer) []*T {
	var out []*T
	for _, obj := range informer.GetStore().List() {
		if t, ok := obj.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// slimCluster keeps what a roster is made of.
func slimCluster(obj any) (any, error) {
	whole, ok := as[v1alpha1.Cluster](obj)
	if !ok {
		return obj, nil
	}
	out := &v1alpha1.Cluster{}
	out.Name, out.Labels, out.DeletionTimestamp = whole.Name, whole.Labels, whole.DeletionTimestamp
	out.Status.FrontProxy = whole.Status.FrontProxy
	return out, nil
}

// slimShared keeps what is exposed, and which versions members announce.
func slimShared(obj any) (any, error) {
	whole, ok := as[v1alpha1.SharedAPI](obj)
	if !ok {
		return obj, nil
	}
	out := &v1alpha1.SharedAPI{Spec: whole.Spec}
	out.Name, out.CreationTimestamp, out.DeletionTimestamp = whole.Name, whole.CreationTimestamp, whole.DeletionTimestamp
	for _, entry := range whole.Status.Clusters {
		out.Status.Clusters = append(out.Status.Clusters, v1alpha1.ClusterExposure{Name: entry.Name, Versions: entry.Versions})
	}
	return out, nil
}

// as reads an object, unless it has been before, or cannot be: then it counts for
// nothing.
func as[T any](obj any) (*T, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		klog.ErrorS(err, "Cannot read what is shared", "kind", u.GetKind(), "name", u.GetName())
		return nil, false
	}
	return out, true
}
