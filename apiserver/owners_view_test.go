package apiserver

import (
	"encoding/json"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/fake"
)

// The collector reads an object with a placeholder for an owner in a member. A patch
// computed from that must not be applied to the object.
func TestCollectorPatchesKeepOwnersInMembers(t *testing.T) {
	parent := metav1.OwnerReference{APIVersion: "shared.test/v1", Kind: "Widget", Name: "parent", UID: "parent"}
	inMember := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web"}
	widget := func(group string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: group + "/v1", Kind: "Widget"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "child", ResourceVersion: "7",
				OwnerReferences: []metav1.OwnerReference{parent, inMember},
			},
		}
	}
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	store := fake.NewSimpleMetadataClient(scheme, widget("shared.test"), widget("plain.test"), &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "kube-system"},
	})
	client := ownersClient{store, &ownersView{func(group string) bool { return group == "shared.test" }}}
	widgets := func(group string) ownersResource {
		resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
		return client.Resource(resource).Namespace("default").(ownersResource)
	}

	object, err := widgets("shared.test").Get(t.Context(), "child", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := object.OwnerReferences
	existing := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceSystem, UID: "kube-system"}
	if !slices.Equal(seen, []metav1.OwnerReference{parent, existing}) {
		t.Errorf("the collector sees the owners %v", seen)
	}
	if object, err = widgets("plain.test").Get(t.Context(), "child", metav1.GetOptions{}); err != nil ||
		!slices.Equal(object.OwnerReferences, []metav1.OwnerReference{parent, inMember}) {
		t.Errorf("in a group that is not shared, it sees the owners %v (%v)", object, err)
	}

	for _, c := range []struct {
		what    string
		group   string
		patch   map[string]any
		refused bool
	}{
		{"owners as it has read them, less one", "shared.test", map[string]any{"ownerReferences": seen[1:]}, true},
		{"no owners", "shared.test", map[string]any{"ownerReferences": nil}, true},
		{"finalizers", "shared.test", map[string]any{"finalizers": []string{"a.test/b"}}, false},
		{"owners as they are, less one", "shared.test", map[string]any{"ownerReferences": []metav1.OwnerReference{inMember}}, false},
		{"no owners, in a group that is not shared", "plain.test", map[string]any{"ownerReferences": nil}, false},
	} {
		patch, err := json.Marshal(map[string]any{"metadata": c.patch})
		if err != nil {
			t.Fatal(err)
		}
		_, err = widgets(c.group).Patch(t.Context(), "child", types.MergePatchType, patch, metav1.PatchOptions{})
		if refused := apierrors.IsConflict(err); refused != c.refused || (err != nil && !refused) {
			t.Errorf("patch of %s: %v", c.what, err)
		}
	}
}
