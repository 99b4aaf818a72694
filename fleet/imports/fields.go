package imports

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// Fields knows, for each member, which fields Kubernetes' built-in kinds have there. It is kept
// in memory only: members of one release share their documents, and a new leader reads them
// again within seconds. Unknown members are reported as such, which blocks nothing.
type Fields struct {
	mu       sync.Mutex
	members  map[string]map[kschema.GroupVersion]*document
	shared   map[string]*document // by the digest of the content
	notified map[*func(string)]bool
	// releases groups the members by their document of a group version. It is computed on
	// demand and cleared when members change.
	releases    map[kschema.GroupVersion][]release
	placedKinds placedKinds
	// readSlots limits concurrent reads of documents from members. A thousand members that are
	// read at once, as by a new leader, mostly serve the same documents: later readers find
	// them in shared.
	readSlots chan struct{}
}

// maxConcurrentReads is how many documents are read from members at once. Each takes some ten
// megabytes of memory meanwhile.
const maxConcurrentReads = 8

// release is a document and the members that serve it; nil for those that do not serve the
// version.
type release struct {
	doc     *document
	members []string
}

// document holds the schemas of the placed kinds from a group version's OpenAPI document.
type document struct {
	digest string
	kinds  map[kschema.GroupVersionKind]*schema.Props
}

// NewFields returns an empty Fields.
func NewFields() *Fields {
	return &Fields{members: map[string]map[kschema.GroupVersion]*document{}, shared: map[string]*document{}, notified: map[*func(string)]bool{},
		releases: map[kschema.GroupVersion][]release{}, placedKinds: newPlacedKinds(), readSlots: make(chan struct{}, maxConcurrentReads)}
}

// Known reports whether a member has been read.
func (f *Fields) Known(cluster string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[cluster] != nil
}

// Gaps returns the missing type or fields of an object, for each member that lacks any. It
// omits members that are not known, and covers only kinds that Kubernetes itself defines. It
// examines the object once for each release among the members, however many members there are.
func (f *Fields) Gaps(obj *unstructured.Unstructured) map[string]*schema.Gap {
	gvk := obj.GroupVersionKind()
	if !f.placedKinds.has(gvk) {
		return nil
	}
	var out map[string]*schema.Gap
	for _, r := range f.releasesOf(gvk.GroupVersion()) {
		gap := r.doc.gap(gvk, obj)
		if gap == nil {
			continue
		}
		if out == nil {
			out = make(map[string]*schema.Gap, len(r.members))
		}
		for _, cluster := range r.members {
			out[cluster] = gap
		}
	}
	return out
}

// releasesOf returns the releases of a group version among the members. The result must not be
// modified.
func (f *Fields) releasesOf(gv kschema.GroupVersion) []release {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.releases[gv]; ok {
		return known
	}
	at := map[*document]int{}
	out := []release{}
	for cluster, member := range f.members {
		i, seen := at[member[gv]]
		if !seen {
			i = len(out)
			at[member[gv]], out = i, append(out, release{doc: member[gv]})
		}
		out[i].members = append(out[i].members, cluster)
	}
	f.releases[gv] = out
	return out
}

// gap returns what a member with this document lacks for an object; a nil document is a version
// that is not served.
func (d *document) gap(gvk kschema.GroupVersionKind, obj *unstructured.Unstructured) *schema.Gap {
	var props *schema.Props
	if d != nil {
		props = d.kinds[gvk]
	}
	if props == nil {
		return &schema.Gap{Reason: schema.TypeNotServed, Message: fmt.Sprintf("does not serve %s of %s: upgrade the cluster, or write the object in a version that it serves", gvk.Kind, gvk.GroupVersion())}
	}
	// The status is not sent.
	sent := maps.Clone(obj.Object)
	delete(sent, "status")
	unknown := slices.DeleteFunc(schema.UnknownPaths(props, sent), func(path string) bool { return isDefault(gvk.Kind, path, obj) })
	if len(unknown) == 0 {
		return nil
	}
	return &schema.Gap{Reason: schema.UnknownFields, Fields: unknown,
		Message: fmt.Sprintf("does not know %s of %s and would drop it: upgrade the cluster, or remove the field", firstPaths(unknown), gvk.Kind)}
}

// isDefault reports whether a field has a value that the control plane sets by default and that
// matches the behavior of older releases without the field.
func isDefault(kind, path string, obj *unstructured.Unstructured) bool {
	spec, _, _ := unstructured.NestedMap(obj.Object, "spec")
	switch {
	case kind == "Job" && path == ".spec.podReplacementPolicy":
		return spec["podReplacementPolicy"] == "TerminatingOrFailed"
	case kind == "StatefulSet" && path == ".spec.persistentVolumeClaimRetentionPolicy":
		policy, _ := spec["persistentVolumeClaimRetentionPolicy"].(map[string]any)
		return policy["whenDeleted"] == "Retain" && policy["whenScaled"] == "Retain"
	}
	return false
}

func firstPaths(paths []string) string {
	const most = 3
	out := strings.Join(paths[:min(most, len(paths))], ", ")
	if more := len(paths) - most; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// OnChange calls notify with the name of a member whenever its known fields change, until
// cancelled. notify must not block.
func (f *Fields) OnChange(notify func(cluster string)) (cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := &notify
	f.notified[at] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.notified, at)
	}
}

// refresh updates the documents of a member from its index, and returns their digests. A
// document that cannot be read keeps its previous state.
func (f *Fields) refresh(ctx context.Context, cluster string, from documentSource, index map[kschema.GroupVersion]string) (map[kschema.GroupVersion]string, error) {
	known := map[kschema.GroupVersion]*document{}
	var bad error
	for gv := range f.placedKinds {
		address, served := index[gv]
		if !served {
			continue
		}
		doc, err := f.read(ctx, from, gv, address)
		if err != nil {
			bad = errors.Join(bad, err)
			doc = f.documentOf(cluster, gv)
		}
		if doc != nil {
			known[gv] = doc
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if bad == nil || f.Known(cluster) {
		f.set(cluster, known)
	}
	digests := map[kschema.GroupVersion]string{}
	for gv, doc := range known {
		digests[gv] = doc.digest
	}
	return digests, bad
}

// documentsOf returns the documents of a member, for reading only.
func (f *Fields) documentsOf(cluster string) map[kschema.GroupVersion]*document {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.members[cluster])
}

func (f *Fields) documentOf(cluster string, gv kschema.GroupVersion) *document {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[cluster][gv]
}

// read returns a document. If the address names a digest that is known already, it returns the
// document of another member without a request: a member that announces a wrong digest affects
// only itself.
func (f *Fields) read(ctx context.Context, from documentSource, gv kschema.GroupVersion, address string) (*document, error) {
	if doc := f.sharedByDigest(hashOf(address)); doc != nil {
		return doc, nil
	}
	select {
	case f.readSlots <- struct{}{}:
		defer func() { <-f.readSlots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if doc := f.sharedByDigest(hashOf(address)); doc != nil {
		return doc, nil // read from another member meanwhile
	}
	data, err := from.document(ctx, address)
	if err != nil {
		return nil, err
	}
	digest := fmt.Sprintf("%X", sha512.Sum512(data))
	if doc := f.sharedByDigest(digest); doc != nil {
		return doc, nil
	}
	kinds, err := kindsOf(data, gv)
	if err != nil {
		return nil, err
	}
	doc := &document{digest: digest, kinds: kinds}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shared[digest] = doc
	return doc, nil
}

// hashOf returns the content digest that an address contains, "" if none.
func hashOf(address string) string {
	at, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return at.Query().Get("hash")
}

func (f *Fields) sharedByDigest(digest string) *document {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shared[digest]
}

func (f *Fields) set(cluster string, known map[kschema.GroupVersion]*document) {
	f.mu.Lock()
	if f.members[cluster] != nil && maps.Equal(f.members[cluster], known) {
		// The common case. Unused documents are searched only when there may be some, since
		// that iterates over all members.
		f.mu.Unlock()
		return
	}
	had := len(f.members[cluster]) > 0
	f.members[cluster] = known
	clear(f.releases)
	for _, d := range known {
		f.shared[d.digest] = d
	}
	if had {
		f.removeUnused()
	}
	var notify []func(string)
	for n := range f.notified {
		notify = append(notify, *n)
	}
	f.mu.Unlock()
	for _, n := range notify {
		n(cluster)
	}
}

// adopt sets the documents of a member that a syncer has read.
func (f *Fields) adopt(cluster string, documents map[kschema.GroupVersion]*document) {
	known := map[kschema.GroupVersion]*document{}
	for gv, doc := range documents {
		if same := f.sharedByDigest(doc.digest); same != nil {
			doc = same
		}
		known[gv] = doc
	}
	f.set(cluster, known)
}

// forget removes a member.
func (f *Fields) forget(cluster string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, cluster)
	clear(f.releases)
	f.removeUnused()
}

// removeUnused removes documents that no member serves any more. The caller holds mu.
func (f *Fields) removeUnused() {
	used := map[*document]bool{}
	for _, docs := range f.members {
		for _, d := range docs {
			used[d] = true
		}
	}
	maps.DeleteFunc(f.shared, func(_ string, d *document) bool { return !used[d] })
}

// placedKinds are Kubernetes' built-in kinds that can be placed, by group version.
type placedKinds map[kschema.GroupVersion]map[string]bool

func newPlacedKinds() placedKinds {
	out := placedKinds{}
	for _, k := range interpret.Kinds() {
		if !builtIn(k.Group) {
			continue
		}
		if out[k.GroupVersion()] == nil {
			out[k.GroupVersion()] = map[string]bool{}
		}
		out[k.GroupVersion()][k.GroupVersionKind.Kind] = true
	}
	return out
}

func (i placedKinds) has(gvk kschema.GroupVersionKind) bool { return i[gvk.GroupVersion()][gvk.Kind] }
