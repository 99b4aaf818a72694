package interpret

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// StaysHome tells why an object never goes to a member cluster, or "", by the
// table alone: see Knowledge.StaysHome.
func StaysHome(obj *unstructured.Unstructured) string { return staysHome(obj, Find) }

func staysHome(obj *unstructured.Unstructured, find func(schema.GroupKind) (Kind, bool)) string {
	switch {
	case HomeNamespace(obj.GetNamespace()):
		return "objects of the control plane's own namespaces stay here"
	case obj.GetKind() == "ServiceAccount" && obj.GetName() == "default":
		return "every cluster makes its own default ServiceAccount"
	case obj.GetKind() == "ConfigMap" && obj.GetName() == "kube-root-ca.crt":
		return "every cluster publishes its own CA"
	case obj.GetKind() == "Secret" && secretType(obj) == string(corev1.SecretTypeServiceAccountToken):
		return "a service-account token is valid only where it was issued"
	case obj.GetKind() == "Secret" && secretType(obj) == v1alpha1.KubeconfigSecretType:
		return "a cluster's kubeconfig is the fleet's own"
	case obj.GetKind() == "Service" && obj.GetNamespace() == metav1.NamespaceDefault && obj.GetName() == "kubernetes":
		return "every cluster has its own API server"
	}
	owners := obj.GetOwnerReferences()
	if len(owners) == 0 {
		return ""
	}
	self, _ := find(obj.GroupVersionKind().GroupKind())
	for _, owner := range owners {
		// A CronJob makes its Jobs where it runs. What merely follows its user
		// (a ConfigMap that a Deployment owns) nobody makes there, so it goes.
		k, ok := find(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind())
		if ok && k.Placed && self.Placed {
			return "its owner " + owner.Kind + " " + owner.Name + " is placed, and makes it in each cluster"
		}
	}
	return ""
}

// HomeNamespace tells whether a namespace belongs to the control plane itself.
func HomeNamespace(name string) bool {
	return strings.HasPrefix(name, "kube-") || strings.HasPrefix(name, "atoll-")
}

func secretType(obj *unstructured.Unstructured) string {
	t, _, _ := unstructured.NestedString(obj.Object, "type")
	return t
}

// Prepare gives the object as one cluster should have it, where nothing but the
// replica count depends on the cluster: see PrepareShare.
func (k Kind) Prepare(obj *unstructured.Unstructured, cluster string, replicas *int32) *unstructured.Unstructured {
	return k.PrepareShare(obj, Share{Cluster: cluster, Replicas: replicas})
}

// PrepareShare gives the object as one cluster should have it: a new object
// without what belongs to the control plane (identity, owners, finalizers,
// status) and without what each cluster decides for itself. Fields that are left
// out are retained in the member by server-side apply, because the syncer does
// not own them.
func (k Kind) PrepareShare(obj *unstructured.Unstructured, share Share) *unstructured.Unstructured {
	out := obj.DeepCopy().Object
	delete(out, "status")
	pruneNulls(out)

	meta := map[string]any{"name": obj.GetName()}
	if !k.ClusterScoped {
		meta["namespace"] = obj.GetNamespace()
	}
	labels := maps.Clone(obj.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.ManagedLabel] = "true"
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownAnnotation(key) })
	annotations[v1alpha1.ClusterAnnotation] = share.Cluster
	annotations[v1alpha1.SourceUIDAnnotation] = string(obj.GetUID())
	meta["labels"], meta["annotations"] = anyMap(labels), anyMap(annotations)
	out["metadata"] = meta
	out["apiVersion"], out["kind"] = k.GroupVersion().String(), k.GroupVersionKind.Kind

	if k.Divided {
		k.setReplicas(out, share)
	}
	if k.prepare != nil {
		k.prepare(out)
	}
	if k.share != nil {
		k.share(out, share)
	}
	return &unstructured.Unstructured{Object: out}
}

// ownAnnotation tells whether an annotation says something about the object in
// the control plane only.
func ownAnnotation(key string) bool {
	return key == corev1.LastAppliedConfigAnnotation ||
		key == "deployment.kubernetes.io/revision" ||
		key == "deprecated.daemonset.template.generation" ||
		key == v1alpha1.AdoptAnnotation ||
		strings.HasPrefix(key, "pv.kubernetes.io/") ||
		strings.HasPrefix(key, "volume.kubernetes.io/selected-node")
}

func prepareServiceAccount(obj map[string]any) { delete(obj, "secrets") }

func prepareClaim(obj map[string]any) {
	if spec, ok := obj["spec"].(map[string]any); ok {
		delete(spec, "volumeName")
	}
}

// prepareService leaves addresses and node ports to each cluster: they are
// allocated from ranges that no two clusters share.
func prepareService(obj map[string]any) {
	spec, ok := obj["spec"].(map[string]any)
	if !ok {
		return
	}
	if spec["clusterIP"] != corev1.ClusterIPNone {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		delete(spec, "ipFamilies")
		// SingleStack is what the control plane fills in; more is a wish of the user.
		if spec["ipFamilyPolicy"] == string(corev1.IPFamilyPolicySingleStack) {
			delete(spec, "ipFamilyPolicy")
		}
	}
	delete(spec, "healthCheckNodePort")
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		if port, ok := p.(map[string]any); ok {
			delete(port, "nodePort")
		}
	}
}

func prepareStatefulSet(obj map[string]any) {
	claims, _, _ := unstructured.NestedFieldNoCopy(obj, "spec", "volumeClaimTemplates")
	list, _ := claims.([]any)
	for _, c := range list {
		if claim, ok := c.(map[string]any); ok {
			delete(claim, "status")
		}
	}
}

// prepareJob leaves the selector to each cluster's job controller, which ties it
// to the UID that the Job has there.
func prepareJob(obj map[string]any) {
	if manual, _, _ := unstructured.NestedBool(obj, "spec", "manualSelector"); manual {
		return
	}
	unstructured.RemoveNestedField(obj, "spec", "selector")
	for _, label := range []string{"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"} {
		unstructured.RemoveNestedField(obj, "metadata", "labels", label)
		unstructured.RemoveNestedField(obj, "spec", "template", "metadata", "labels", label)
	}
}

// pruneNulls removes nulls, which server-side apply would read as "I own this
// and want it empty". Typed clients write them (creationTimestamp: null).
func pruneNulls(m map[string]any) {
	for key, value := range m {
		switch v := value.(type) {
		case nil:
			delete(m, key)
		case map[string]any:
			pruneNulls(v)
		case []any:
			for _, item := range v {
				if im, ok := item.(map[string]any); ok {
					pruneNulls(im)
				}
			}
		}
	}
}

func setNested(obj map[string]any, value any, path ...string) {
	for _, field := range path[:len(path)-1] {
		next, ok := obj[field].(map[string]any)
		if !ok {
			next = map[string]any{}
			obj[field] = next
		}
		obj = next
	}
	obj[path[len(path)-1]] = value
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}
