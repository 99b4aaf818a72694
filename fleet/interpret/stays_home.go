package interpret

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// StaysHome returns why an object is never placed, or "" if it may be, by the built-in table alone:
// see Catalog.StaysHome.
func StaysHome(obj *unstructured.Unstructured) string { return staysHome(obj, Find) }

// MayStayHome reports whether users may take an object of this kind and namespace for one that is placed,
// although StaysHome returns a reason. It is false for what controllers write.
func MayStayHome(gk schema.GroupKind, namespace string) bool {
	if k, known := Find(gk); !known || k.Custom {
		return false
	}
	switch gk.Group {
	case rbacGroup:
		return strings.HasSuffix(gk.Kind, "Binding")
	case admissionGroup:
		return strings.HasSuffix(gk.Kind, "AdmissionPolicy")
	case schedulingGroup:
		return true
	}
	return IsSystemNamespace(namespace) || gk == schema.GroupKind{Kind: "Secret"}
}

func staysHome(obj *unstructured.Unstructured, find func(schema.GroupKind) (KindInfo, bool)) string {
	gk := obj.GroupVersionKind().GroupKind()
	if namespace := obj.GetNamespace(); IsSystemNamespace(namespace) && namespace != metav1.NamespaceSystem && !isForeignAccounts(obj) {
		return "objects of the control plane's own namespaces stay here"
	}
	if ownGroup(gk.Group) {
		return "types of " + gk.Group + " are the control plane's own"
	}
	if why := systemObject(gk, obj); why != "" {
		return why
	}
	if obj.GetLabels()[v1alpha1.RevisionLabel] != "" && gk.Group == appsGroup {
		return "it records a revision of a workload; every cluster keeps its own records"
	}
	return ownedElsewhere(gk, obj, find)
}

// systemObject recognizes objects that every cluster has of its own.
func systemObject(gk schema.GroupKind, obj *unstructured.Unstructured) string {
	switch gk.Group {
	case "":
		return coreStaysHome(obj)
	case rbacGroup:
		return rbacStaysHome(obj)
	case crdGroup:
		return definitionStaysHome(obj)
	case admissionGroup:
		if strings.HasSuffix(obj.GetKind(), "AdmissionPolicy") {
			return admissionPolicyStaysHome(obj)
		}
	case schedulingGroup:
		if strings.HasPrefix(obj.GetName(), "system-") {
			return "every cluster has its own system priority classes"
		}
	case discoveryGroup:
		switch {
		case obj.GetNamespace() == metav1.NamespaceDefault && obj.GetName() == "kubernetes":
			return "every cluster has its own API server"
		case obj.GetLabels()[serviceNameLabel] == "":
			return "it belongs to no Service: label " + serviceNameLabel + " is missing"
		case strings.HasPrefix(obj.GetLabels()[managedByLabel], "endpointslice"):
			return "every cluster creates the EndpointSlices of its own pods"
		}
	case importsGroup:
		if obj.GetKind() == "ServiceExport" && HomeOf(obj, nil) != v1alpha1.HomeMembers {
			return "the control plane itself exports Services: clusters import them"
		}
	case "apiregistration.k8s.io":
		if object(obj.Object, "spec", "service") == nil {
			return "every API server serves its own groups"
		}
	}
	return ""
}

const (
	serviceNameLabel = "kubernetes.io/service-name"
	managedByLabel   = "endpointslice.kubernetes.io/managed-by"
)

// publishedByAPIServers are ConfigMaps in kube-system.
var publishedByAPIServers = []string{"extension-apiserver-authentication", "kube-apiserver-legacy-service-account-token-tracking"}

func coreStaysHome(obj *unstructured.Unstructured) string {
	switch obj.GetKind() {
	case "ServiceAccount":
		if obj.GetName() == DefaultServiceAccount {
			return "every cluster creates its own default ServiceAccount"
		}
	case "ConfigMap":
		switch {
		case obj.GetName() == "kube-root-ca.crt":
			return "every cluster publishes its own CA"
		case obj.GetNamespace() == metav1.NamespaceSystem && slices.Contains(publishedByAPIServers, obj.GetName()):
			return "every API server publishes its own"
		}
	case "Secret":
		switch text(obj.Object, "type") {
		case string(corev1.SecretTypeServiceAccountToken):
			return "a service-account token is valid only where it was issued"
		case string(corev1.SecretTypeBootstrapToken):
			return "a bootstrap token is valid only where it was issued"
		case v1alpha1.KubeconfigSecretType:
			return "a cluster's kubeconfig is the fleet's own"
		}
	case "Service", "Endpoints":
		if obj.GetNamespace() == metav1.NamespaceDefault && obj.GetName() == "kubernetes" {
			return "every cluster has its own API server"
		}
	case "Namespace":
		return ReservedNamespace(obj.GetName())
	}
	return ""
}

// definitionStaysHome keeps types whose objects exist only in the control plane. A member that had
// such a type would accept objects and do nothing with them.
func definitionStaysHome(obj *unstructured.Unstructured) string {
	group := text(obj.Object, "spec", "group")
	switch {
	case ownGroup(group):
		return "types of " + group + " are the control plane's own"
	case obj.GetLabels()[v1alpha1.SharedLabel] == "true":
		return "members serve " + group + " by forwarding requests: its objects exist only in the control plane"
	case group == importsGroup && HomeOf(obj, nil) != v1alpha1.HomeMembers:
		return "the control plane exports Services itself; a cluster that is to have ServiceImports serves their type already"
	case HomeOf(obj, nil) == v1alpha1.HomeAbove:
		return "its label " + v1alpha1.HomeLabel + " keeps it in the control plane"
	case obj.GetLabels()[v1alpha1.PublishedLabel] == "true":
		return "it was generated from the types that members serve"
	}
	return ""
}

// ownedElsewhere finds objects whose owner creates them in each cluster, as a CronJob creates its
// Jobs. A follower (a ConfigMap that a Deployment owns) is created by no controller there, so it is
// placed. So is an object that a custom resource owns: only a controller that works on the control
// plane can have created it here.
func ownedElsewhere(gk schema.GroupKind, obj *unstructured.Unstructured, find func(schema.GroupKind) (KindInfo, bool)) string {
	owners := obj.GetOwnerReferences()
	if len(owners) == 0 {
		return ""
	}
	if self, _ := find(gk); !self.Placed || obj.GetAnnotations()[byHandAnnotation] == "manual" {
		return ""
	}
	for _, owner := range owners {
		k, ok := find(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind())
		if ok && k.Placed && k.Origin == OriginBuiltIn {
			return "its owner " + owner.Kind + " " + owner.Name + " is placed, and creates it in each cluster"
		}
	}
	return ""
}

// byHandAnnotation is set by kubectl on a Job that a user starts from a CronJob. No cluster creates
// such a Job by itself.
const byHandAnnotation = "cronjob.kubernetes.io/instantiate"

// IsSystemNamespace reports whether a namespace belongs to the control plane itself.
func IsSystemNamespace(name string) bool {
	return strings.HasPrefix(name, "kube-") || strings.HasPrefix(name, "atoll-")
}

// ownGroup reports whether an API group is Atoll's.
func ownGroup(group string) bool {
	_, domain, _ := strings.Cut(v1alpha1.Group, ".")
	return group == domain || strings.HasSuffix(group, "."+domain)
}
