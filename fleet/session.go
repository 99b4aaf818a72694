package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Session is what the controllers share during one leadership session: clients of the control
// plane, and one cache of everything that the fleet reads there, regardless of the number of
// clusters. Objects from the caches must not be changed.
//
// The binding of a cluster-scoped object is a ClusterResourceBinding in the API. Here it is a
// ResourceBinding with an empty namespace. Every statement about bindings applies to it too.
type Session struct {
	Dynamic dynamic.Interface
	Kube    kubernetes.Interface
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics *Metrics // may be nil
	// ControlPlane is this one, and Identity is this server in it.
	ControlPlane ControlPlane
	Identity     string
	// Started is when the session began. Status that was recorded earlier is unconfirmed.
	Started time.Time

	Clusters   *Clusters
	Bindings   *Bindings
	Policies   *Policies
	Quotas     *Quotas
	Namespaces *Namespaces
	// Kinds says which kinds the fleet handles now, Types which clusters accept them, and Objects has
	// their objects.
	Kinds           *Kinds
	Types           *Types
	Objects         *Objects
	Interpretations controllers.Cache[v1alpha1.ResourceInterpretation]

	answered      answered
	subscriptions subscriptions
	running       sync.WaitGroup
}

// NewSession starts the caches and returns when they are filled. They run until ctx ends.
func NewSession(ctx context.Context, cfg Config) (*Session, error) {
	kube, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	kinds, err := servedKinds(ctx, kube.Discovery().RESTClient())
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	return NewSessionWithClients(ctx, cfg, kube, dyn, meta, kinds)
}

// NewSessionWithClients is NewSession with the given clients, for the given kinds and all custom
// ones. Without a metadata client, opaque kinds are watched in full like the others.
func NewSessionWithClients(ctx context.Context, cfg Config, kube kubernetes.Interface, dyn dynamic.Interface, meta metadata.Interface, kinds []interpret.KindInfo) (*Session, error) {
	s := &Session{
		Dynamic: dyn, Kube: kube, Clock: cfg.Clock, Log: cfg.Log, Metrics: cfg.Metrics, Started: cfg.Clock.Now(),
		ControlPlane: cfg.ControlPlane, Identity: cfg.Identity,
		Bindings: newBindings(dyn), Policies: newPolicies(dyn), Quotas: NewQuotas(dyn, cfg.Clock), Namespaces: newNamespaces(dyn, meta), Types: newTypes(dyn),
		Interpretations: controllers.NewCache[v1alpha1.ResourceInterpretation](dyn, v1alpha1.ResourceInterpretationResource, controllers.CacheOptions{}),
	}
	var source AnswerSource
	if cfg.Answers != nil {
		source = cfg.Answers()
	}
	s.Kinds = newKinds(dyn, meta, s.Interpretations, source) // a nil source stays nil as interpret.Answers
	s.Objects = &Objects{kinds: s.Kinds, types: s.Types, dynamic: dyn}
	s.Clusters = newClusters(dyn, s.Objects, cfg.Restrict)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	s.Events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "atoll-fleet"})

	custom := newCustomKinds(s)
	if err := errors.Join(s.Clusters.listen(), s.subscriptions.listen(s), custom.listen()); err != nil {
		return nil, err
	}
	if source != nil {
		s.running.Go(func() { source.Run(ctx, s.answered.publish) })
	}
	if err := s.fill(ctx, s.informers(cfg.InWorkspace)...); err != nil {
		return nil, err
	}
	var opened []cache.SharedIndexInformer
	for _, k := range kinds {
		if _, custom := s.Types.defines(k.GroupKind()); custom {
			continue // the control plane has it from a CRD, so it is handled as a custom kind
		}
		_, i, err := s.Kinds.open(ctx, entry{KindInfo: k, inTable: true, status: true})
		if err != nil {
			return nil, err
		}
		opened = append(opened, i)
	}
	if err := s.fill(ctx, opened...); err != nil {
		return nil, err
	}
	for _, i := range opened {
		s.Kinds.markServed(i)
	}
	return s, custom.start(ctx)
}

// informers returns the informers that a session starts with. Those of kinds that workspaces do not have stay empty there.
func (s *Session) informers(inWorkspace bool) []cache.SharedIndexInformer {
	all := slices.Concat([]cache.SharedIndexInformer{s.Clusters.Informer, s.Namespaces.informer, s.Interpretations.Informer, s.Types.crds.Informer},
		s.Bindings.informers(), s.Policies.informers())
	if inWorkspace {
		return all
	}
	return append(all, s.Quotas.Informer, s.Types.negotiated.Informer, s.Types.imports.Informer)
}

// Subscribe calls notify with the key of each binding that concerns a cluster: now, and whenever
// the binding or its object changes. When a namespace of such a binding changes, or any namespace
// is deleted, it calls notify with the namespace and no name. notify must not block. One cache
// serves all clusters, and each is notified only of its own bindings.
func (s *Session) Subscribe(cluster string, notify func(types.NamespacedName)) (cancel func()) {
	cancel = s.subscriptions.add(cluster, notify)
	for _, b := range s.Bindings.On(cluster) {
		notify(b.Key())
	}
	return cancel
}

// fill starts informers and returns when they are synced.
func (s *Session) fill(ctx context.Context, informers ...cache.SharedIndexInformer) error {
	synced := make([]cache.InformerSynced, 0, len(informers))
	for _, i := range informers {
		s.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	return nil
}

// Wait returns when the caches have stopped, after the context that the Session was made with has
// ended.
func (s *Session) Wait() { s.running.Wait() }
