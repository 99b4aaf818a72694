package syncer

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// A namespace that the fleet did not create in a member has accounts, Secrets and rights of the member's own. A tenant of
// the control plane's namespace of the same name could run pods with them. So nothing is put there until an administrator
// of the fleet adopts the namespace.

// adopts reports whether an administrator adopted the namespace of this name in the member, by the annotation of the
// control plane's. Tenants cannot change namespaces. The fleet treats it as one that it created from then on.
func (s *Syncer) adopts(name string) bool {
	return interpret.ReservedNamespace(name) == "" && s.adoption(name) == "true"
}

// adoption returns the value of the control plane's annotation, "true" if it names this cluster.
func (s *Syncer) adoption(name string) string {
	ns, known := s.Namespace(name)
	if !known {
		return ""
	}
	value := ns.GetAnnotations()[v1alpha1.AdoptAnnotation]
	if v1alpha1.Adopts(value, s.cluster) {
		return "true"
	}
	return value
}

// mayUse reports whether objects of a kind may be put into a namespace that the fleet neither created nor adopted:
//   - into any, if the cluster joined with --adopt;
//   - into default, which every cluster has;
//   - Roles and RoleBindings into kube-system: what a placed ServiceAccount needs to read the configuration of API server
//     extensions, for example.
//
// The annotation with the value "false" forbids all three.
func (s *Syncer) mayUse(live *unstructured.Unstructured, kind schema.GroupKind) bool {
	switch s.adoption(live.GetName()) {
	case "true":
		return true
	case "false":
		return false
	}
	if c, known := s.Cluster(); known && c.Annotations[v1alpha1.AdoptAnnotation] == "true" {
		return true
	}
	switch live.GetName() {
	case metav1.NamespaceDefault:
		return true
	case metav1.NamespaceSystem:
		return kind.Group == rbacv1.GroupName && (kind.Kind == "Role" || kind.Kind == "RoleBinding")
	}
	return false
}

// namespaceChanged checks again whether the namespace may be used, and tries the objects again that are not in the member
// because it may not.
func (s *Syncer) namespaceChanged(name string) {
	s.member.forgetNamespace(name)
	for _, b := range s.Bindings() {
		if b.Namespace != name {
			continue
		}
		if state, reported := b.State(s.cluster); reported && state.Reason == v1alpha1.StateConflict {
			s.queue.Add(b.Key())
		}
	}
}

// isUsable reports whether the namespace is known to exist, and to take objects of all kinds.
func (c *memberClient) isUsable(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.namespaces[namespace]
}

func (c *memberClient) use(namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespaces[namespace] = true
}

func (c *memberClient) forgetNamespace(name string) {
	c.mu.Lock()
	delete(c.namespaces, name)
	c.mu.Unlock()
}
