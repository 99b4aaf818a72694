package view

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// RemoteConfig says what a Remote needs.
type RemoteConfig struct {
	// Kubeconfig leads to the view: its server is the view's URL. It is self-contained.
	Kubeconfig []byte
	// Keep is given the kubeconfig anew when its certificate has been renewed, before
	// the old one expires. Required.
	Keep func(ctx context.Context, kubeconfig []byte) error
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

// Remote is a view that a server of Atoll serves, somewhere else. What it has been
// told it keeps, also while no server answers: a lost connection means that nothing
// new is known, and nothing else.
type Remote struct {
	cluster string
	link    *link
	log     *slog.Logger
	clock   clock.WithTicker
	notes   chan noteOf
	first   sync.WaitGroup // of what has to be listed once

	mu          sync.Mutex
	bound       map[types.NamespacedName]*BoundObject
	namespaces  map[string]*BoundNamespace
	self        *v1alpha1.Cluster
	lessons     map[string]*v1alpha1.ResourceInterpretation
	knowledge   interpret.Knowledge // with them
	subscribers map[int]func(types.NamespacedName)
	subscribed  int
}

// NewRemote prepares a view. It asks nobody until Run.
func NewRemote(cfg RemoteConfig) (*Remote, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	l, err := newLink(cfg)
	if err != nil {
		return nil, err
	}
	v := &Remote{cluster: l.cluster, link: l, log: cfg.Log.With("cluster", l.cluster), clock: cfg.Clock,
		notes: make(chan noteOf, 256), bound: map[types.NamespacedName]*BoundObject{}, namespaces: map[string]*BoundNamespace{},
		lessons: map[string]*v1alpha1.ResourceInterpretation{}, knowledge: interpret.BuiltIn(),
		subscribers: map[int]func(types.NamespacedName){}}
	v.first.Add(4)
	return v, nil
}

// Name of the cluster whose view it is.
func (v *Remote) Name() string { return v.cluster }

// Run follows the view until ctx ends.
func (v *Remote) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for resource, take := range map[string]func(change) error{
		clusters: v.takeCluster, boundNamespaces: v.takeNamespace, boundObjects: v.takeBound, lessons: v.takeLesson,
	} {
		listed := sync.OnceFunc(v.first.Done)
		group.Go(func() error { v.follow(ctx, resource, take, listed); return nil })
	}
	group.Go(func() error { v.sendNotes(ctx); return nil })
	group.Go(func() error { v.link.keepFresh(ctx); return nil })
	return group.Wait()
}

// Await returns when everything has been read once, or ctx ends. A syncer that begins
// earlier does not know yet what its Cluster says of what it finds.
func (v *Remote) Await(ctx context.Context) error {
	all := make(chan struct{})
	go func() { v.first.Wait(); close(all) }()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cluster gives the Cluster itself; false if it is not known (yet).
func (v *Remote) Cluster() (*v1alpha1.Cluster, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.self, v.self != nil
}

// Subscribe calls notify with the key of each binding of the view: now, and whenever
// the binding or its object changes. notify must not block.
func (v *Remote) Subscribe(notify func(types.NamespacedName)) (cancel func()) {
	v.mu.Lock()
	v.subscribed++
	id := v.subscribed
	v.subscribers[id] = notify
	keys := slices.Collect(maps.Keys(v.bound))
	v.mu.Unlock()
	for _, key := range keys {
		notify(key)
	}
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.subscribers, id)
	}
}

// Binding gives a binding of the view.
func (v *Remote) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, ok := v.bound[key]
	if !ok {
		return nil, false
	}
	return o.binding(), true
}

// Bindings gives all bindings of the view.
func (v *Remote) Bindings() []*v1alpha1.ResourceBinding {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]*v1alpha1.ResourceBinding, 0, len(v.bound))
	for _, o := range v.bound {
		out = append(out, o.binding())
	}
	return out
}

// KindOf gives what is known of the kind of a binding's object, in the version that it
// is bound in. Of a kind that is not in the table that is what the view says of it, and in
// any case what was taught.
func (v *Remote) KindOf(b *v1alpha1.ResourceBinding) (interpret.Kind, bool) {
	v.mu.Lock()
	knowledge, o := v.knowledge, v.bound[b.Key()]
	v.mu.Unlock()
	ref := b.Spec.Resource
	if _, known := knowledge.Find(ref.GroupVersionKind().GroupKind()); !known && ref.Resource != "" {
		var scale *interpret.Scale
		if o != nil {
			scale = o.Binding.Scale
		}
		knowledge = knowledge.With(interpret.Generic(ref.GroupVersionKind(), ref.Resource, b.Namespace == "", scale))
	}
	return knowledge.Bound(b)
}

// TypeVanished tells whether the type of a binding's object is gone, and nobody is known
// to have deleted it.
func (v *Remote) TypeVanished(b *v1alpha1.ResourceBinding) bool {
	o, ok := v.find(b)
	return ok && o.TypeVanished
}

// Namespace gives the metadata of a namespace; false if it is not known.
func (v *Remote) Namespace(name string) (metav1.Object, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ns, ok := v.namespaces[name]
	if !ok {
		return nil, false
	}
	return &ns.ObjectMeta, true
}

// problem is a fleet.ErrImpossible in the words of a server.
type problem string

func (p problem) Error() string        { return string(p) }
func (p problem) Is(target error) bool { return target == fleet.ErrImpossible }

func (v *Remote) find(b *v1alpha1.ResourceBinding) (*BoundObject, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, ok := v.bound[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}]
	return o, ok && o.UID == b.UID
}

// Source tells of the object that a binding is about; false if there is none.
func (v *Remote) Source(b *v1alpha1.ResourceBinding) (fleet.Source, bool) {
	o, ok := v.find(b)
	if !ok || o.Source == nil {
		return fleet.Source{}, false
	}
	return *o.Source, true
}

// Desired gives the object as the cluster should have it; false if it should not. live
// is the object as the cluster has it, nil if it does not.
func (v *Remote) Desired(_ context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured) (*unstructured.Unstructured, fleet.Source, bool, error) {
	o, ok := v.find(b)
	if ok && o.Problem != "" {
		// The servers have said in it already that it is ErrImpossible.
		return nil, fleet.Source{}, false, problem(o.Problem)
	}
	if !ok || o.Source == nil || o.Object == nil {
		return nil, fleet.Source{}, false, nil
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(o.Object.Raw); err != nil {
		return nil, fleet.Source{}, false, fmt.Errorf("read the object of binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	if share, chosen := b.Share(v.cluster); chosen && o.Binding.Autoscaled {
		if k, known := v.KindOf(b); known {
			k.HandOver(out, interpret.Share{Cluster: v.cluster, Replicas: share.Replicas, Autoscaled: true, Live: live, Manager: v1alpha1.SyncerFieldManager})
		}
	}
	return out, *o.Source, true, nil
}

// Leaving gives the binding as it is now if its object is to leave the cluster, else
// nil. Only a server that says so, of this very binding, counts: no answer, another
// one, and one that there is no such thing all mean that nothing is deleted. decided tells a
// removal that nobody asked for.
func (v *Remote) Leaving(ctx context.Context, b *v1alpha1.ResourceBinding) (now *v1alpha1.ResourceBinding, decided bool, err error) {
	var o BoundObject
	err = v.link.do(ctx, http.MethodGet, boundPath(b), nil, &o)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("confirm that %s %s/%s is to leave cluster %s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	if o.Kind != boundObjectKind || o.UID != b.UID || o.Binding.Resource.UID != b.Spec.Resource.UID || !o.Leaves {
		return nil, false, nil
	}
	return o.binding(), o.Decided, nil
}

// NamespaceGone tells whether the control plane has a namespace no more.
func (v *Remote) NamespaceGone(ctx context.Context, name string) (bool, error) {
	var ns BoundNamespace
	if err := v.link.do(ctx, http.MethodGet, ownPath("", boundNamespaces, name), nil, &ns); err != nil {
		return false, fmt.Errorf("make sure that namespace %s is gone: %w", name, err)
	}
	return ns.Kind == boundNamespace && ns.Name == name && ns.Gone, nil
}

// Report writes the cluster's entry in the binding's status, or takes it out if it is
// nil.
func (v *Remote) Report(ctx context.Context, b *v1alpha1.ResourceBinding, entry *v1alpha1.ClusterState) error {
	said := BoundObject{ObjectMeta: b.ObjectMeta, Status: BoundStatus{State: entry, Removed: entry == nil}}
	said.APIVersion, said.Kind = apiVersion, boundObjectKind
	if err := v.link.do(ctx, http.MethodPut, boundPath(b)+"/status", said, nil); err != nil {
		return fmt.Errorf("report on %s %s/%s from cluster %s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	return nil
}

// Observe tells how the cluster fares. It is to be called every
// v1alpha1.HeartbeatEvery.
func (v *Remote) Observe(ctx context.Context, o fleet.Observation) error {
	o.Message = bounded(o.Message)
	if err := v.link.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/status", o, nil); err != nil {
		return fmt.Errorf("report on cluster %s: %w", v.cluster, err)
	}
	return nil
}

// Halt says whether the syncer waits for a person before it removes more from the
// cluster.
func (v *Remote) Halt(ctx context.Context, condition metav1.Condition) error {
	condition.Type, condition.Message = v1alpha1.ClusterDeletionsHalted, bounded(condition.Message)
	if err := v.link.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+haltedResource, condition, nil); err != nil {
		return fmt.Errorf("write the condition %s of cluster %s: %w", condition.Type, v.cluster, err)
	}
	return nil
}

// ReportTypes tells which API groups the cluster serves, and gives what the servers want
// to know besides.
func (v *Remote) ReportTypes(ctx context.Context, said fleet.TypesReport) (wanted fleet.TypesWanted, err error) {
	said.Message = bounded(said.Message)
	if err := v.link.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+typesResource, said, &wanted); err != nil {
		return wanted, fmt.Errorf("report the types of cluster %s: %w", v.cluster, err)
	}
	return wanted, nil
}

// ReportGroup tells what the cluster serves of one of them.
func (v *Remote) ReportGroup(ctx context.Context, said fleet.GroupReport) error {
	if err := v.link.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+groupResource, said, nil); err != nil {
		return fmt.Errorf("report what cluster %s serves of group %q: %w", v.cluster, said.Group, err)
	}
	return nil
}

// noteOf is an event to be sent.
type noteOf struct {
	path string
	note Note
}

// Event tells the owner of a binding's object what happened to it in the cluster. It
// does not wait; what cannot be told soon is not told.
func (v *Remote) Event(b *v1alpha1.ResourceBinding, kind, reason, message string) {
	select {
	case v.notes <- noteOf{boundPath(b) + "/events", Note{Type: kind, Reason: reason, Message: bounded(message)}}:
	default:
		v.log.Debug("too many events to tell them all", "reason", reason)
	}
}

func (v *Remote) sendNotes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-v.notes:
			if err := v.link.do(ctx, http.MethodPost, n.path, n.note, nil); err != nil && ctx.Err() == nil {
				v.log.Debug("cannot tell an event", "reason", n.note.Reason, "error", err)
			}
		}
	}
}

// bounded shortens what is said to people to what a view takes.
func bounded(s string) string {
	if len(s) <= longestMessage {
		return s
	}
	const mark = "…"
	cut := longestMessage - len(mark)
	for cut > 0 && s[cut]&0xC0 == 0x80 { // not within a letter
		cut--
	}
	return s[:cut] + mark
}

func boundPath(b *v1alpha1.ResourceBinding) string { return ownPath(b.Namespace, boundObjects, b.Name) }

// ownPath is the path, below the view, of what only views have.
func ownPath(namespace, resource, name string) string {
	path := "/apis/" + apiVersion
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + resource
	if name != "" {
		path += "/" + name
	}
	return path
}
