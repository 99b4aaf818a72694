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

// clusterOrigin is the origin, in a change log, of the Cluster itself.
func clusterOrigin() types.NamespacedName { return types.NamespacedName{} }

// interpretationPrefix is the prefix of the origin of a ResourceInterpretation. No binding has
// such a name.
const interpretationPrefix = interpretations + "/"

func interpretationOrigin(name string) types.NamespacedName {
	return types.NamespacedName{Name: interpretationPrefix + name}
}

// projection is a view as it is served: it follows the caches and records the changes for its
// cluster.
type projection struct {
	view   *Local
	log    *changeLog
	cancel func() // the subscription
	// interpretations are the names of the known ResourceInterpretations. Only catchUp uses it.
	interpretations map[string]bool

	mu    sync.Mutex
	dirty map[types.NamespacedName]bool
	wake  chan struct{}
}

// newProjection returns a view with everything that is bound now. It receives notifications of
// changes, and run has to run to process them.
func newProjection(view *Local) *projection {
	p := &projection{view: view, log: newChangeLog(), interpretations: map[string]bool{}, dirty: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1)}
	p.markDirty(clusterOrigin())
	p.cancel = view.Subscribe(p.markDirty)
	p.catchUp()
	return p
}

// run processes changes until ctx ends.
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

// markDirty records that the cluster's part of a binding may have changed. A key without a name
// stands for a namespace.
func (p *projection) markDirty(key types.NamespacedName) {
	p.mu.Lock()
	p.dirty[key] = true
	if key.Namespace != "" {
		p.dirty[types.NamespacedName{Namespace: key.Namespace}] = true
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default: // woken already
	}
}

func (p *projection) catchUp() {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[types.NamespacedName]bool{}
	p.mu.Unlock()
	for key := range dirty {
		if b, ok := p.view.Binding(key); ok && key.Namespace == "" && interpret.IsNamespace(b.Spec.Resource.GroupVersionKind().GroupKind()) {
			dirty[types.NamespacedName{Namespace: b.Spec.Resource.Name}] = true
		}
	}
	for key := range dirty {
		p.log.update(key, p.items(key))
		if key.Name == "" && key != clusterOrigin() {
			p.touchNamespace(key.Namespace)
		}
	}
	// The view contains few interpretations, and which ones depends on all bindings.
	for _, in := range p.view.session.Interpretations.All() {
		p.interpretations[in.Name] = true
	}
	for name := range p.interpretations {
		// One read decides both: if it were read again, a deletion between the two would be forgotten
		// before the log knows of it.
		in, exists := p.view.session.Interpretations.Get(name)
		if !exists {
			delete(p.interpretations, name)
		}
		p.log.update(interpretationOrigin(name), p.interpretationItems(in))
	}
}

// items returns the objects of a view that come from a binding: the binding itself and, while
// the cluster should have it, the object.
func (p *projection) items(key types.NamespacedName) []item {
	switch {
	case key == clusterOrigin():
		return p.clusterItems()
	case key.Name == "":
		return p.namespaceItems(key.Namespace)
	}
	b, concerns := p.binding(key)
	if !concerns {
		return nil
	}
	version, chosen := p.objectVersion(b)
	bound := item{objectKey: objectKey{boundObjectResource(), key}, origin: key, uid: b.UID,
		kind:   ownKind(boundObjectKind),
		digest: digest(reduced(b, p.view.cluster), version, p.view.TypeVanished(b), p.scaleOf(b), p.view.waitsFor(b))}
	k, _ := p.view.KindOf(b)
	if !chosen || interpret.IsNamespace(k.GroupKind()) { // a view serves namespaces as BoundNamespaces
		return []item{bound}
	}
	object := item{objectKey: objectKey{k.GVR(), types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}},
		origin: key, uid: b.Spec.Resource.UID, kind: k.GroupVersionKind, digest: version}
	return []item{bound, object}
}

// clusterItems includes the credential in the digest, although it is not visible: when it
// changes, watchers are woken and authorized again.
func (p *projection) clusterItems() []item {
	c, ok := p.view.Cluster()
	if !ok {
		return nil
	}
	return []item{{objectKey: objectKey{v1alpha1.ClusterResource, types.NamespacedName{Name: c.Name}}, uid: c.UID,
		kind:   ownKind(clusterKind),
		digest: digest(reducedCluster(c, p.view.session.ControlPlane), c.Annotations[v1alpha1.CredentialAnnotation])}}
}

// interpretationItems returns a ResourceInterpretation, which may be nil, while an object of its
// kind is in the view.
func (p *projection) interpretationItems(in *v1alpha1.ResourceInterpretation) []item {
	if in == nil || !slices.ContainsFunc(p.view.session.Bindings.Of(in.Spec.Target.GroupKind()), func(b *v1alpha1.ResourceBinding) bool { return concerns(b, p.view.cluster) }) {
		return nil
	}
	return []item{{objectKey: objectKey{v1alpha1.ResourceInterpretationResource, types.NamespacedName{Name: in.Name}}, uid: in.UID,
		kind: ownKind(interpretationKind), digest: digest(reducedInterpretation(in))}}
}

// touchNamespace sends the removal of a namespace a second time: it left the view when it was
// emptied, and now it is deleted. The cluster may still have it.
func (p *projection) touchNamespace(name string) {
	if ns, ok := p.view.session.Namespaces.Get(name); !ok || ns.GetDeletionTimestamp() != nil {
		p.log.touchTombstone(objectKey{boundNamespaceResource(), types.NamespacedName{Name: name}}, "gone")
	}
}

// namespaceItems returns a namespace while it, or an object in it, is in the view.
func (p *projection) namespaceItems(name string) []item {
	ns := p.namespace(name)
	_, own := p.binding(types.NamespacedName{Name: v1alpha1.BindingName(interpret.NamespaceKind().GroupKind(), name)})
	if ns == nil || !own && !slices.ContainsFunc(p.view.session.Bindings.In(name), func(b *v1alpha1.ResourceBinding) bool { return concerns(b, p.view.cluster) }) {
		return nil
	}
	return []item{{objectKey: objectKey{boundNamespaceResource(), types.NamespacedName{Name: name}}, uid: ns.UID,
		kind: ownKind(boundNamespace), digest: digest(ns)}}
}

func (p *projection) namespace(name string) *BoundNamespace {
	ns, ok := p.view.session.Namespaces.Get(name)
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

// binding returns a binding if it concerns the cluster.
func (p *projection) binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	b, ok := p.view.Binding(key)
	if !ok {
		return nil, false
	}
	return b, concerns(b, p.view.cluster)
}

// concerns reports whether a binding chooses a cluster or has an entry of it.
func concerns(b *v1alpha1.ResourceBinding, cluster string) bool {
	_, chosen := b.Share(cluster)
	_, reported := b.State(cluster)
	return chosen || reported
}

// objectVersion identifies the object as the cluster should have it; false if the cluster
// should have none. For kinds that the caches hold by metadata only, every new resourceVersion
// may be a change.
func (p *projection) objectVersion(b *v1alpha1.ResourceBinding) (string, bool) {
	share, chosen := b.Share(p.view.cluster)
	k, obj, ok := p.view.source(b)
	if !chosen || !ok {
		if ok {
			return digest(p.view.sourceOf(obj)), false
		}
		return "", false
	}
	if k.Opaque {
		return digest(p.view.sourceOf(obj), obj.GetResourceVersion(), share, b.OverridesOf(share)), true
	}
	desired, err := p.view.prepare(k, b, share, obj, nil)
	if err != nil {
		// The error is reported when the object is read.
		return digest(p.view.sourceOf(obj), err.Error()), true
	}
	return digest(p.view.sourceOf(obj), desired.Object), true
}

// digest returns a digest of values by their JSON.
func digest(values ...any) string {
	data, err := json.Marshal(values)
	if err != nil {
		// Objects come from JSON. A value that cannot be encoded must be equal to nothing.
		return fmt.Sprintf("%p", &data)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// render returns the current JSON of an object; nil if it does not exist any more, which will
// be a change of its own.
func (p *projection) render(ctx context.Context, r logEntry) (json.RawMessage, error) {
	switch r.resource {
	case v1alpha1.ClusterResource:
		c, ok := p.view.Cluster()
		if !ok {
			return nil, nil
		}
		out := reducedCluster(c, p.view.session.ControlPlane)
		out.ResourceVersion = formatVersion(r.version)
		return json.Marshal(out)
	case v1alpha1.ResourceInterpretationResource:
		in, ok := p.view.session.Interpretations.Get(r.Name)
		if !ok {
			return nil, nil
		}
		out := reducedInterpretation(in)
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
	if errors.Is(err, fleet.ErrTransform) {
		return nil, nil // there is no object, and the BoundObject has the reason
	}
	if err != nil || !ok {
		return nil, err
	}
	desired.SetUID(source.UID)
	desired.SetGeneration(source.Generation)
	desired.SetResourceVersion(formatVersion(r.version))
	return json.Marshal(desired)
}

// scaleOf returns the replica paths of a custom kind. Syncers know those of built-in kinds.
func (p *projection) scaleOf(b *v1alpha1.ResourceBinding) *interpret.Scale {
	k, known := p.view.KindOf(b)
	if _, builtIn := interpret.Find(k.GroupKind()); !known || builtIn {
		return nil
	}
	return k.Scale()
}

// bound returns a binding with everything that its cluster's syncer needs.
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
	case interpret.IsPending(err):
		// Neither an object nor a problem: the view changes when the webhook has answered.
	case errors.Is(err, fleet.ErrTransform):
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

// renderDeleted returns the JSON for the removal of an object.
func renderDeleted(r logEntry) (json.RawMessage, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(r.kind)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(r.uid)
	u.SetResourceVersion(formatVersion(r.version))
	return json.Marshal(u)
}

func formatVersion(v uint64) string { return strconv.FormatUint(v, 10) }
