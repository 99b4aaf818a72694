package view

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// userHere returns a placed object that uses a follower, itself or through other followers, and that the cluster
// still has; "" if there is none. seen ends cycles.
func (v *Local) userHere(b *v1alpha1.ResourceBinding, seen map[types.NamespacedName]bool) string {
	seen[b.Key()] = true
	if len(b.Spec.RequiredBy) >= v1alpha1.MaxRequirers-1 {
		// It does not name all of them.
		if user := v.placedHere(v.session.Bindings.On(v.cluster), v1alpha1.RemovalReplaced); user != "" {
			return user
		}
	}
	for _, r := range b.Spec.RequiredBy {
		if r == (v1alpha1.Requirer{Kind: "Namespace", Name: b.Namespace}) {
			if user := v.placedHere(v.session.Bindings.In(b.Namespace), ""); user != "" {
				return user
			}
			continue
		}
		for _, user := range v.named(r, cmp.Or(r.Namespace, b.Namespace)) {
			name := ""
			if len(user.Spec.RequiredBy) == 0 {
				name = v.placedHere([]*v1alpha1.ResourceBinding{user}, "")
			} else if !seen[user.Key()] {
				name = v.userHere(user, seen)
			}
			if name != "" {
				return name
			}
		}
	}
	return ""
}

// placedHere returns one of the bindings' objects that is placed by its own decision and that the cluster still
// has; with a reason, only one whose removal was requested for it. It returns "" if there is none.
func (v *Local) placedHere(bindings []*v1alpha1.ResourceBinding, reason string) string {
	for _, b := range bindings {
		if len(b.Spec.RequiredBy) > 0 {
			continue
		}
		_, reported := b.State(v.cluster)
		if r, _ := b.RequestedRemoval(v.cluster); reported && (reason == "" || r.Reason == reason) {
			return b.Spec.Resource.Kind + " " + b.Spec.Resource.Name
		}
	}
	return ""
}

// named returns the bindings of the objects that a binding may mean by a user's kind and name.
func (v *Local) named(r v1alpha1.Requirer, namespace string) (out []*v1alpha1.ResourceBinding) {
	for _, k := range v.session.Kinds.All() {
		if k.GroupVersionKind.Kind != r.Kind {
			continue
		}
		key := types.NamespacedName{Namespace: namespace, Name: v1alpha1.BindingName(k.GroupKind(), r.Name)}
		if k.ClusterScoped {
			key.Namespace = ""
		}
		if b, bound := v.session.Bindings.Get(key); bound {
			out = append(out, b)
		}
	}
	return out
}
