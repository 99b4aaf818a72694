package workspaces

import (
	"fmt"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// contents are the objects of a workspace.
type contents struct {
	objects map[apiserver.ServedKind][]runtime.Object
	// rootCAs are the ConfigMaps with certificate authorities, and rootCA is the wanted content; nil if none is wanted.
	rootCAs []runtime.Object
	rootCA  []byte
}

// progress decides what controllers have to finish. It looks at objects alone, not at what the controllers are doing: so a controller
// that has failed, or has not begun, does not seem to be done.
func (c contents) progress() Progress {
	p := Progress{Synced: true}
	for _, objects := range c.objects {
		p.Objects += len(objects)
	}
	left := slices.Concat(c.deletions(), c.orphans(), c.roles(), c.policies(), c.missingCompanions())
	if p.Left = len(left); p.Left > 0 {
		p.First = slices.Min(left)
	}
	return p
}

// customDefinitions are the definitions of custom resources.
var customDefinitions = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// deletions returns the namespaces and definitions that are being deleted, and the objects whose deletion waits for the garbage
// collector.
func (c contents) deletions() (left []string) {
	for kind, objects := range c.objects {
		resource := kind.Resource.GroupResource()
		for _, o := range objects {
			if m := accessor(o); m.GetDeletionTimestamp() != nil && (resource == overlay.Namespaces || resource == customDefinitions || finalizedByCollector(m)) {
				left = append(left, describe(kind, m)+" is being deleted")
			}
		}
	}
	return left
}

// ownerKey is how an owner reference names an object.
type ownerKey struct {
	kind      schema.GroupKind
	namespace string
	name      string
	uid       types.UID
}

// orphans returns the objects that have an owner which does not exist. The garbage collector deletes such an object, or the reference.
func (c contents) orphans() (left []string) {
	exist, kinds := map[ownerKey]bool{}, map[schema.GroupKind]apiserver.ServedKind{}
	for kind, objects := range c.objects {
		kinds[kind.GroupKind()] = kind
		for _, o := range objects {
			m := accessor(o)
			exist[ownerKey{kind.GroupKind(), m.GetNamespace(), m.GetName(), m.GetUID()}] = true
		}
	}
	for kind, objects := range c.objects {
		for _, o := range objects {
			if m := accessor(o); m.GetDeletionTimestamp() == nil && slices.ContainsFunc(m.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
				return isAbsent(ref, m.GetNamespace(), kinds, exist)
			}) {
				left = append(left, describe(kind, m)+" has an owner that does not exist")
			}
		}
	}
	return left
}

// isAbsent reports whether an owner is known not to exist, so that the garbage collector acts. It does not act on an owner of a kind
// that is not served, nor on one in a namespace if the object is in none.
func isAbsent(ref metav1.OwnerReference, namespace string, kinds map[schema.GroupKind]apiserver.ServedKind, exist map[ownerKey]bool) bool {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return false
	}
	owner := ownerKey{schema.GroupKind{Group: version.Group, Kind: ref.Kind}, namespace, ref.Name, ref.UID}
	kind, served := kinds[owner.kind]
	if !served || kind.Namespaced && namespace == "" {
		return false
	}
	if !kind.Namespaced {
		owner.namespace = ""
	}
	return !exist[owner]
}

// roles returns the ClusterRoles whose rules are not those that they aggregate.
func (c contents) roles() (left []string) {
	var all []rbacv1.ClusterRole
	for kind, objects := range c.objects {
		if kind.GroupKind() != (schema.GroupKind{Group: rbacv1.GroupName, Kind: "ClusterRole"}) {
			continue
		}
		for _, o := range objects {
			if role, ok := o.(*rbacv1.ClusterRole); ok {
				all = append(all, *role)
			}
		}
	}
	slices.SortFunc(all, overlay.ByName)
	for i := range all {
		if role := &all[i]; role.AggregationRule != nil && role.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(overlay.AggregatedRules(role, all), role.Rules) {
			left = append(left, fmt.Sprintf("clusterroles %s does not have the rules that it aggregates", role.Name))
		}
	}
	return left
}

// policies returns the policies whose types are not checked.
func (c contents) policies() (left []string) {
	for kind, objects := range c.objects {
		for _, o := range objects {
			if policy, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicy); ok && apiserver.LacksTypes(policy) {
				left = append(left, describe(kind, policy)+" has types that are not checked")
			}
		}
	}
	return left
}

// missingCompanions returns the namespaces that lack the objects that every namespace has.
func (c contents) missingCompanions() (left []string) {
	has := map[string]bool{}
	active := map[string]bool{}
	for kind, objects := range c.objects {
		switch kind.Resource.GroupResource() {
		case overlay.Namespaces:
			for _, o := range objects {
				if m := accessor(o); m.GetDeletionTimestamp() == nil {
					active[m.GetName()] = true
				}
			}
		case corev1.Resource("serviceaccounts"):
			for _, o := range objects {
				if m := accessor(o); m.GetName() == overlay.AccountName && m.GetDeletionTimestamp() == nil {
					has[m.GetNamespace()] = true
				}
			}
		}
	}
	published := map[string]bool{}
	for _, o := range c.rootCAs {
		if m, ok := o.(*corev1.ConfigMap); ok && maps.Equal(m.Data, overlay.RootCAData(c.rootCA)) {
			published[m.Namespace] = true
		}
	}
	for name := range active {
		if !has[name] {
			left = append(left, fmt.Sprintf("namespaces %s has no ServiceAccount %s", name, overlay.AccountName))
		}
		if len(c.rootCA) > 0 && !published[name] {
			left = append(left, fmt.Sprintf("namespaces %s does not have the certificate authority of this server", name))
		}
	}
	return left
}

func describe(kind apiserver.ServedKind, m metav1.Object) string {
	name := m.GetName()
	if m.GetNamespace() != "" {
		name = m.GetNamespace() + "/" + name
	}
	return kind.Resource.GroupResource().String() + " " + name
}
