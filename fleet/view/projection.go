package view

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func boundObjectResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: boundObjects}
}

func boundNamespaceResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: boundNamespaces}
}

// ofCluster stands, in a ledger, for the binding that the Cluster itself comes from.
func ofCluster() types.NamespacedName { return types.NamespacedName{} }

// lessonOrigin begins what stands for it that a ResourceInterpretation comes from. No
// binding has such a name.
const lessonOrigin = lessons + "/"

func ofLesson(name string) types.NamespacedName {
	return types.NamespacedName{Name: lessonOrigin + name}
}

// projection is a view as it is served: it follows the caches, and numbers what
// changes for the cluster.
type projection struct {
	view   *Local
	ledger *ledger
	cancel func() // the subscription
	// taught are the ResourceInterpretations that there were. It is of catchUp alone.
	taught map[string]bool

	mu    sync.Mutex
	dirty map[types.NamespacedName]bool
	wake  chan struct{}
}

// project gives a view with all that is bound now. It hears of changes, and has to run
// to take them in.
func project(view *Local) *projection {
	p := &projection{view: view, ledger: newLedger(), taught: map[string]bool{}, dirty: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1)}
	p.touch(ofCluster())
	p.cancel = view.Subscribe(p.touch)
	p.catchUp()
	return p
}

// run follows until ctx ends.
func (p *projection) run(ctx context.Context) {
	defer p.cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.catchUp()
		}
	}
}

// touch notes that a binding may look different to the cluster, or a namespace, which
// has no name as a binding has.
func (p *projection) touch(key types.NamespacedName) {
	p.mu.Lock()
	p.dirty[key] = true
	if key.Namespace != "" {
		p.dirty[types.NamespacedName{Namespace: key.Namespace}] = true
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default: // somebody has said so already
	}
}

func (p *projection) catchUp() {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[types.NamespacedName]bool{}
	p.mu.Unlock()
	for key := range dirty {
		p.ledger.note(key, p.facts(key))
		if key.Name == "" && key != ofCluster() {
			p.remindOfNamespace(key.Namespace)
		}
	}
	// Which of them are in the view depends on all bindings: they are few.
	for _, in := range p.view.term.Interpretations() {
		p.taught[in.Name] = true
	}
	for name := range p.taught {
		facts := p.lessonFacts(name)
		p.ledger.note(ofLesson(name), facts)
		if _, exists := p.view.term.Interpretation(name); !exists {
			delete(p.taught, name)
		}
	}
}

// facts are what of a view comes from a binding: the binding and, while the cluster
// should have it, the object.
func (p *projection) facts(key types.NamespacedName) []fact {
	switch {
	case key == ofCluster():
		return p.clusterFacts()
	case key.Name == "":
		return p.namespaceFacts(key.Namespace)
	}
	b, concerns := p.binding(key)
	if !concerns {
		return nil
	}
	version, chosen := p.objectVersion(b)
	bound := fact{place: place{boundObjectResource(), key}, origin: key, uid: b.UID,
		kind:   ownKind(boundObjectKind),
		digest: digest(reduced(b, p.view.cluster), version, p.view.TypeVanished(b), p.scaleOf(b))}
	if !chosen {
		return []fact{bound}
	}
	k, _ := p.view.KindOf(b)
	object := fact{place: place{k.GVR(), types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}},
		origin: key, uid: b.Spec.Resource.UID, kind: k.GroupVersionKind, digest: version}
	return []fact{bound, object}
}

// clusterFacts has the credential in its digest, which is not shown: who watches is
// woken when it changes, and judged again.
func (p *projection) clusterFacts() []fact {
	c, ok := p.view.Cluster()
	if !ok {
		return nil
	}
	return []fact{{place: place{v1alpha1.ClusterResource, types.NamespacedName{Name: c.Name}}, uid: c.UID,
		kind:   ownKind(clusterKind),
		digest: digest(reducedCluster(c), c.Annotations[v1alpha1.CredentialAnnotation])}}
}

// lessonFacts has what somebody taught about a kind in the view while something of the
// kind is.
func (p *projection) lessonFacts(name string) []fact {
	in, ok := p.view.term.Interpretation(name)
	if !ok || !slices.ContainsFunc(p.view.term.BindingsOf(in.Spec.Target.GroupKind()), func(b *v1alpha1.ResourceBinding) bool { return concerns(b, p.view.cluster) }) {
		return nil
	}
	return []fact{{place: place{v1alpha1.ResourceInterpretationResource, types.NamespacedName{Name: name}}, uid: in.UID,
		kind: ownKind(lessonKind), digest: digest(reducedLesson(in))}}
}

// remindOfNamespace tells a second time of a namespace that left the view when it was
// emptied, now that it is gone altogether: the cluster may still have it.
func (p *projection) remindOfNamespace(name string) {
	if ns, ok := p.view.term.Namespace(name); !ok || ns.GetDeletionTimestamp() != nil {
		p.ledger.remind(place{boundNamespaceResource(), types.NamespacedName{Name: name}}, "gone")
	}
}

// namespaceFacts has a namespace in the view while something in it is.
func (p *projection) namespaceFacts(name string) []fact {
	ns := p.namespace(name)
	if ns == nil || !slices.ContainsFunc(p.view.term.BindingsIn(name), func(b *v1alpha1.ResourceBinding) bool { return concerns(b, p.view.cluster) }) {
		return nil
	}
	return []fact{{place: place{boundNamespaceResource(), types.NamespacedName{Name: name}}, uid: ns.UID,
		kind: ownKind(boundNamespace), digest: digest(ns)}}
}

func (p *projection) namespace(name string) *BoundNamespace {
	ns, ok := p.view.term.Namespace(name)
	if !ok {
		return nil
	}
	return &BoundNamespace{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundNamespace},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: ns.GetUID(), Labels: ns.GetLabels(), Annotations: ns.GetAnnotations(),
			CreationTimestamp: ns.GetCreationTimestamp(), DeletionTimestamp: ns.GetDeletionTimestamp()}}
}

func ownKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: v1alpha1.Group, Version: v1alpha1.Version, Kind: kind}
}

// binding gives a binding if it concerns the cluster.
func (p *projection) binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	b, ok := p.view.Binding(key)
	if !ok {
		return nil, false
	}
	return b, concerns(b, p.view.cluster)
}

// concerns tells whether a binding is any business of a cluster.
func concerns(b *v1alpha1.ResourceBinding, cluster string) bool {
	_, chosen := b.Share(cluster)
	_, reported := b.State(cluster)
	return chosen || reported
}

// objectVersion identifies the object as the cluster should have it; false if it
// should not, or there is none. Of what the caches hold by its metadata only, any new
// version may differ.
func (p *projection) objectVersion(b *v1alpha1.ResourceBinding) (string, bool) {
	share, chosen := b.Share(p.view.cluster)
	k, obj, ok := p.view.source(b)
	if !chosen || !ok {
		if ok {
			return digest(sourceOf(obj)), false
		}
		return "", false
	}
	if k.Opaque {
		return digest(sourceOf(obj), obj.GetResourceVersion(), share, b.OverridesOf(share)), true
	}
	desired, err := p.view.prepare(k, b, share, obj, nil)
	if err != nil {
		// What is wrong with it will be said to who asks for it.
		return digest(sourceOf(obj), err.Error()), true
	}
	return digest(sourceOf(obj), desired.Object), true
}

// digest identifies values by their JSON.
func digest(values ...any) string {
	data, err := json.Marshal(values)
	if err != nil {
		// Objects come from JSON. Whatever else this is, it is equal to nothing.
		return fmt.Sprintf("%p", &data)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// render gives what is at a place as JSON, as it is now; nil if it is not there any
// more, which will be a change of its own.
func (p *projection) render(ctx context.Context, r record) (json.RawMessage, error) {
	switch r.resource {
	case v1alpha1.ClusterResource:
		c, ok := p.view.Cluster()
		if !ok {
			return nil, nil
		}
		out := reducedCluster(c)
		out.ResourceVersion = formatVersion(r.version)
		return json.Marshal(out)
	case v1alpha1.ResourceInterpretationResource:
		in, ok := p.view.term.Interpretation(r.Name)
		if !ok {
			return nil, nil
		}
		out := reducedLesson(in)
		out.ResourceVersion = formatVersion(r.version)
		return json.Marshal(out)
	case boundNamespaceResource():
		out := p.namespace(r.Name)
		if out == nil {
			return nil, nil
		}
		out.ResourceVersion = formatVersion(r.version)
		return json.Marshal(out)
	case boundObjectResource():
		b, ok := p.binding(r.NamespacedName)
		if !ok || b.UID != r.uid {
			return nil, nil
		}
		out, err := p.bound(ctx, b)
		if err != nil {
			return nil, err
		}
		out.ResourceVersion = formatVersion(r.version)
		return json.Marshal(out)
	}
	b, ok := p.binding(r.origin)
	if !ok {
		return nil, nil
	}
	desired, source, ok, err := p.view.Desired(ctx, b, nil)
	if errors.Is(err, fleet.ErrImpossible) {
		return nil, nil // it is not there, and its binding says why
	}
	if err != nil || !ok {
		return nil, err
	}
	desired.SetUID(source.UID)
	desired.SetGeneration(source.Generation)
	desired.SetResourceVersion(formatVersion(r.version))
	return json.Marshal(desired)
}

// scaleOf says where a custom kind keeps its replicas. What is in the table a syncer knows.
func (p *projection) scaleOf(b *v1alpha1.ResourceBinding) *interpret.Scale {
	k, known := p.view.KindOf(b)
	if _, builtIn := interpret.Find(k.GroupKind()); !known || builtIn {
		return nil
	}
	return k.Scale()
}

// bound gives a binding with all that its cluster's syncer needs.
func (p *projection) bound(ctx context.Context, b *v1alpha1.ResourceBinding) (*BoundObject, error) {
	out := reduced(b, p.view.cluster)
	out.TypeVanished, out.Binding.Scale = p.view.TypeVanished(b), p.scaleOf(b)
	if k, known := p.view.KindOf(b); known {
		out.Binding.Resource.Resource = k.Resource
	}
	if source, ok := p.view.Source(b); ok {
		out.Source = &source
	}
	desired, source, ok, err := p.view.Desired(ctx, b, nil)
	switch {
	case errors.Is(err, fleet.ErrImpossible):
		out.Problem = err.Error()
	case err != nil:
		return nil, err
	}
	if ok {
		out.Source = &source
		data, err := json.Marshal(desired.Object)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s/%s: %w", desired.GetKind(), desired.GetNamespace(), desired.GetName(), err)
		}
		out.Object = &runtime.RawExtension{Raw: data}
	}
	return out, nil
}

// remains is what is left to say of what is gone.
func remains(r record) (json.RawMessage, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(r.kind)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(r.uid)
	u.SetResourceVersion(formatVersion(r.version))
	return json.Marshal(u)
}

func formatVersion(v uint64) string { return strconv.FormatUint(v, 10) }
