package interpret

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	helmReleaseType       = "helm.sh/release.v1"
	leaderAnnotation      = "control-plane.alpha.kubernetes.io/leader"
	serviceAccountUIDName = "kubernetes.io/service-account.uid"
)

// bindingKind has no namespace. Bindings are configuration only if no placed account leads to them.
var bindingKind = schema.GroupKind{Group: rbacGroup, Kind: "ClusterRoleBinding"}

// GoesWithNamespace reports whether an object of a Configuration kind goes wherever its namespace's
// workloads run; a cluster-scoped object goes wherever any workloads run. What clients keep about their own work does not: no program in a cluster reads it.
func (k KindInfo) GoesWithNamespace(obj *unstructured.Unstructured) bool {
	if k.GroupKind() == bindingKind && isForClusterControllers(obj) {
		return true
	}
	if !k.Configuration || IsSystemNamespace(obj.GetNamespace()) {
		return false
	}
	annotations := obj.GetAnnotations()
	switch {
	case text(obj.Object, "type") == helmReleaseType, obj.GetLabels()["owner"] == "helm" && strings.HasPrefix(obj.GetName(), "sh.helm."):
		return false // a release that Helm recorded
	case annotations[leaderAnnotation] != "", annotations[serviceAccountUIDName] != "":
		return false // a lock or a token is valid only where it was issued
	}
	return true
}
