package view

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
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

// RemoteConfig configures a Remote.
type RemoteConfig struct {
	// Kubeconfig connects to the view: its server is the view's URL. It is self-contained.
	Kubeconfig []byte
	// Save stores the kubeconfig after its certificate has been renewed, before the old one
	// expires. Required.
	Save func(ctx context.Context, kubeconfig []byte) error
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Answers returns a source of the answers of webhooks that asks by ask: the server of the view. Without
	// it, no webhook answers.
	Answers func(ask func(context.Context, interpret.Question) (interpret.Answer, error)) fleet.AnswerSource
}

// Remote is the client of a view that a server of Atoll serves. It keeps its state while no
// server responds: a lost connection means that no news arrives, and nothing else.
type Remote struct {
	cluster      string
	client       *client
	log          *slog.Logger
	clock        clock.WithTicker
	events       chan pendingEvent
	initialLists sync.WaitGroup // initial lists
	answers      fleet.AnswerSource

	mu              sync.Mutex
	bound           map[types.NamespacedName]*BoundObject
	namespaces      map[string]*BoundNamespace
	self            *v1alpha1.Cluster
	interpretations map[string]*v1alpha1.ResourceInterpretation
	knowledge       interpret.Catalog // including interpretations
	subscribers     map[int]func(types.NamespacedName)
	subscribed      int
}

// NewRemote returns a Remote. It does not connect before Run.
func NewRemote(cfg RemoteConfig) (*Remote, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	l, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	v := &Remote{cluster: l.cluster, client: l, log: cfg.Log.With("cluster", l.cluster), clock: cfg.Clock,
		events: make(chan pendingEvent, 256), bound: map[types.NamespacedName]*BoundObject{}, namespaces: map[string]*BoundNamespace{},
		interpretations: map[string]*v1alpha1.ResourceInterpretation{}, knowledge: interpret.BuiltIn(),
		subscribers: map[int]func(types.NamespacedName){}}
	if cfg.Answers != nil {
		v.answers = cfg.Answers(v.ask)
		v.knowledge = v.knowledge.AnsweredBy(v.answers)
	}
	v.initialLists.Add(4)
	return v, nil
}

// Name returns the name of the view's cluster.
func (v *Remote) Name() string { return v.cluster }

// Run keeps the view current until ctx ends.
func (v *Remote) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for resource, handle := range map[string]func(change) error{
		clusters: v.handleCluster, boundNamespaces: v.handleNamespace, boundObjects: v.handleBound, interpretations: v.handleInterpretation,
	} {
		listed := sync.OnceFunc(v.initialLists.Done)
		group.Go(func() error { v.follow(ctx, resource, handle, listed); return nil })
	}
	group.Go(func() error { v.sendEvents(ctx); return nil })
	if v.answers != nil {
		group.Go(func() error { v.answers.Run(ctx, v.answered); return nil })
	}
	group.Go(func() error { v.client.renewPeriodically(ctx); return nil })
	return group.Wait()
}

// Connection is where the view is, and how to connect to it. Ended is done when it should be read again, because the
// certificate was renewed.
type Connection struct {
	URL   string
	TLS   *tls.Config
	Proxy func(*http.Request) (*url.URL, error)
	Ended context.Context
}

// Connection returns the current one.
func (v *Remote) Connection() Connection {
	w := v.client.current()
	return Connection{URL: v.client.base, TLS: w.tls, Proxy: w.proxy, Ended: w.ctx}
}

// WaitForSync returns when everything has been read once, or ctx ends. A syncer that started
// earlier would not know yet what its Cluster and bindings allow it to do with the objects it
// finds.
func (v *Remote) WaitForSync(ctx context.Context) error {
	all := make(chan struct{})
	go func() { v.initialLists.Wait(); close(all) }()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cluster returns the Cluster itself; false if it is not known (yet).
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

// Binding returns a binding of the view.
func (v *Remote) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, ok := v.bound[key]
	if !ok {
		return nil, false
	}
	return o.binding(), true
}

// Bindings returns all bindings of the view.
func (v *Remote) Bindings() []*v1alpha1.ResourceBinding {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]*v1alpha1.ResourceBinding, 0, len(v.bound))
	for _, o := range v.bound {
		out = append(out, o.binding())
	}
	return out
}

// KindOf returns the known facts about the kind of a binding's object, in the version that is
// bound. For a kind that is not built in, they come from the view; interpretations apply to all
// kinds.
func (v *Remote) KindOf(b *v1alpha1.ResourceBinding) (interpret.KindInfo, bool) {
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
	return knowledge.ForBinding(b)
}

// TypeVanished reports whether the type of a binding's object is gone although no one is known
// to have deleted it.
func (v *Remote) TypeVanished(b *v1alpha1.ResourceBinding) bool {
	o, ok := v.find(b)
	return ok && o.TypeVanished
}

// Namespace returns the metadata of a namespace; false if it is not known.
func (v *Remote) Namespace(name string) (metav1.Object, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ns, ok := v.namespaces[name]
	if !ok {
		return nil, false
	}
	return &ns.ObjectMeta, true
}

// problem is a fleet.ErrTransform with the message of a server.
type problem string

func (p problem) Error() string        { return string(p) }
func (p problem) Is(target error) bool { return target == fleet.ErrTransform }

func (v *Remote) find(b *v1alpha1.ResourceBinding) (*BoundObject, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, ok := v.bound[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}]
	return o, ok && o.UID == b.UID
}

// Source returns the state of the binding's object; false if it does not exist.
func (v *Remote) Source(b *v1alpha1.ResourceBinding) (fleet.SourceObject, bool) {
	o, ok := v.find(b)
	if !ok || o.Source == nil {
		return fleet.SourceObject{}, false
	}
	return *o.Source, true
}

// Desired returns the object as the cluster should have it; false if it should have none. live
// is the object in the cluster, nil if there is no such object.
func (v *Remote) Desired(_ context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured) (*unstructured.Unstructured, fleet.SourceObject, bool, error) {
	o, ok := v.find(b)
	if ok && o.Problem != "" {
		// The server's message already contains that of ErrTransform.
		return nil, fleet.SourceObject{}, false, problem(o.Problem)
	}
	if !ok || o.Source == nil || o.Object == nil {
		return nil, fleet.SourceObject{}, false, nil
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(o.Object.Raw); err != nil {
		return nil, fleet.SourceObject{}, false, fmt.Errorf("read the object of binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	if share, chosen := b.Share(v.cluster); chosen && o.Binding.Autoscaled {
		if k, known := v.KindOf(b); known {
			k.HandOver(out, interpret.Share{Cluster: v.cluster, Replicas: share.Replicas, Autoscaled: true, Live: live, Manager: v1alpha1.SyncerFieldManager})
		}
	}
	return out, *o.Source, true, nil
}

// ConfirmRemoval returns the current binding if its object is to leave the cluster, otherwise
// nil. Only a server's positive response for exactly this binding counts: no response, a
// different response and "not found" all mean that nothing is deleted.
func (v *Remote) ConfirmRemoval(ctx context.Context, b *v1alpha1.ResourceBinding) (fleet.Removal, error) {
	var o BoundObject
	err := v.client.do(ctx, http.MethodGet, boundPath(b), nil, &o)
	if apierrors.IsNotFound(err) {
		return fleet.Removal{}, nil
	}
	if err != nil {
		return fleet.Removal{}, fmt.Errorf("confirm that %s %s/%s is to leave cluster %s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	if o.Kind != boundObjectKind || o.UID != b.UID || o.Binding.Resource.UID != b.Spec.Resource.UID || !o.Leaves && o.Waits == "" {
		return fleet.Removal{}, nil
	}
	return fleet.Removal{Binding: o.binding(), Decided: o.Decided, Waits: truncate(o.Waits)}, nil
}

// ConfirmShare reports whether a binding still names the cluster, with the same share.
func (v *Remote) ConfirmShare(ctx context.Context, b *v1alpha1.ResourceBinding) (bool, error) {
	var o BoundObject
	if err := v.client.do(ctx, http.MethodGet, boundPath(b), nil, &o); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("confirm the share of %s %s/%s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, err)
	}
	share, chosen := b.Share(v.cluster)
	return o.Kind == boundObjectKind && o.UID == b.UID && o.Generation == b.Generation && chosen && o.Binding.Share != nil && o.Binding.Share.Revision == share.Revision, nil
}

// ConfirmNamespaceGone reports whether the control plane no longer has a namespace.
func (v *Remote) ConfirmNamespaceGone(ctx context.Context, name string) (bool, error) {
	var ns BoundNamespace
	if err := v.client.do(ctx, http.MethodGet, ownPath("", boundNamespaces, name), nil, &ns); err != nil {
		return false, fmt.Errorf("confirm that namespace %s is gone: %w", name, err)
	}
	return ns.Kind == boundNamespace && ns.Name == name && ns.Gone, nil
}

// Report writes the cluster's entry in the binding's status, or removes it if entry is nil.
func (v *Remote) Report(ctx context.Context, b *v1alpha1.ResourceBinding, entry *v1alpha1.ClusterState) error {
	report := BoundObject{ObjectMeta: b.ObjectMeta, Status: BoundStatus{State: entry, Removed: entry == nil}}
	report.APIVersion, report.Kind = apiVersion, boundObjectKind
	if err := v.client.do(ctx, http.MethodPut, boundPath(b)+"/status", report, nil); err != nil {
		return fmt.Errorf("report on %s %s/%s from cluster %s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	return nil
}

// Observe reports the state of the cluster. It must be called every v1alpha1.HeartbeatInterval.
func (v *Remote) Observe(ctx context.Context, o fleet.Observation) error {
	o.Message, o.NamespacesMessage = truncate(o.Message), truncate(o.NamespacesMessage)
	if err := v.client.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/status", o, nil); err != nil {
		return fmt.Errorf("report on cluster %s: %w", v.cluster, err)
	}
	return nil
}

// SetDeletionsHalted writes the Cluster's condition DeletionsHalted.
func (v *Remote) SetDeletionsHalted(ctx context.Context, condition metav1.Condition) error {
	condition.Type, condition.Message = v1alpha1.ClusterDeletionsHalted, truncate(condition.Message)
	if err := v.client.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+haltedResource, condition, nil); err != nil {
		return fmt.Errorf("write the condition %s of cluster %s: %w", condition.Type, v.cluster, err)
	}
	return nil
}

// ReportTypes reports the API groups that the cluster serves, and returns what else the servers
// request.
func (v *Remote) ReportTypes(ctx context.Context, report fleet.TypesReport) (wanted fleet.TypesWanted, err error) {
	report.Message = truncate(report.Message)
	if err := v.client.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+typesResource, report, &wanted); err != nil {
		return wanted, fmt.Errorf("report the types of cluster %s: %w", v.cluster, err)
	}
	return wanted, nil
}

// ReportGroup reports the content of one group.
func (v *Remote) ReportGroup(ctx context.Context, report fleet.GroupReport) error {
	if err := v.client.do(ctx, http.MethodPut, ownPath("", clusters, v.cluster)+"/"+groupResource, report, nil); err != nil {
		return fmt.Errorf("report the types of cluster %s in group %q: %w", v.cluster, report.Group, err)
	}
	return nil
}

// pendingEvent is an event to be sent.
type pendingEvent struct {
	path string
	note EventReport
}

// Event records an event on a binding's object. It does not wait; if too many events are
// pending, it drops the event.
func (v *Remote) Event(b *v1alpha1.ResourceBinding, kind, reason, message string) {
	select {
	case v.events <- pendingEvent{boundPath(b) + "/events", EventReport{Type: kind, Reason: reason, Message: truncate(message)}}:
	default:
		v.log.Debug("event dropped: too many events are pending", "reason", reason)
	}
}

func (v *Remote) sendEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-v.events:
			if err := v.client.do(ctx, http.MethodPost, n.path, n.note, nil); err != nil && ctx.Err() == nil {
				v.log.Debug("send event failed", "reason", n.note.Reason, "error", err)
			}
		}
	}
}

// truncate shortens a message to the limit of a view.
func truncate(s string) string {
	if len(s) <= maxMessageBytes {
		return s
	}
	const mark = "…"
	cut := maxMessageBytes - len(mark)
	for cut > 0 && s[cut]&0xC0 == 0x80 { // not within a UTF-8 sequence
		cut--
	}
	return s[:cut] + mark
}

func boundPath(b *v1alpha1.ResourceBinding) string { return ownPath(b.Namespace, boundObjects, b.Name) }

// ownPath returns the path, below the view, of a resource that exists only in views.
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
