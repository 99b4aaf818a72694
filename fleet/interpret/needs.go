package interpret

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Reference names an object. Namespace is "" for cluster-scoped kinds.
type Reference struct {
	schema.GroupKind
	Namespace, Name string
}

func refer(group, kind, namespace, name string) Reference {
	return Reference{GroupKind: schema.GroupKind{Group: group, Kind: kind}, Namespace: namespace, Name: name}
}

// refs collects the references of an object without duplicates.
type refs struct {
	namespace string // of the object
	list      []Reference
	// content are the Secrets and ConfigMaps among them without which pods do not start.
	content []Reference
}

func (r *refs) add(ref Reference) {
	if ref.Name != "" && !slices.Contains(r.list, ref) {
		r.list = append(r.list, ref)
	}
}

// here adds an object of the same namespace, and core one of the core group.
func (r *refs) here(group, kind, name string) { r.add(refer(group, kind, r.namespace, name)) }
func (r *refs) core(kind, name string)        { r.here("", kind, name) }

// read adds a Secret or a ConfigMap that pods read.
func (r *refs) read(kind, name string, optional *bool) {
	r.core(kind, name)
	if ref := refer("", kind, r.namespace, name); name != "" && !ptr.Deref(optional, false) && !slices.Contains(r.content, ref) {
		r.content = append(r.content, ref)
	}
}

// global adds a cluster-scoped object.
func (r *refs) global(group, kind, name string) { r.add(refer(group, kind, "", name)) }

// Needs returns the objects that obj references, without duplicates, in the order of the spec: they
// have to run where obj runs. They need not exist, and may be cluster-scoped. Followers of obj,
// such as a Service that selects its pods, are not included: see Follows.
func (k KindInfo) Needs(obj *unstructured.Unstructured) ([]Reference, error) {
	out := &refs{namespace: obj.GetNamespace()}
	if err := k.templateNeeds(obj, out); err != nil {
		return nil, fmt.Errorf("pod template of %s %s: %w", k.Kind, obj.GetName(), err)
	}
	if err := k.componentNeeds(obj, out); err != nil {
		return nil, err
	}
	if k.needs != nil {
		if err := k.needs(obj, out); err != nil {
			return nil, fmt.Errorf("read the dependencies of %s %s: %w", k.Kind, obj.GetName(), err)
		}
	}
	if k.Custom {
		out.global(crdGroup, "CustomResourceDefinition", k.Resource+"."+k.Group)
	}
	return out.list, nil
}

func (k KindInfo) templateNeeds(obj *unstructured.Unstructured, out *refs) error {
	if k.template == nil {
		return nil
	}
	spec, found, err := unstructured.NestedMap(obj.Object, append(slices.Clone(k.template), "spec")...)
	if err != nil || !found {
		return err
	}
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod); err != nil {
		return err
	}
	podNeeds(&pod, out)
	return nil
}

// Selects reports whether a Service sends traffic to pods with these labels.
func Selects(service *unstructured.Unstructured, podLabels map[string]string) bool {
	selector, _, err := unstructured.NestedStringMap(service.Object, "spec", "selector")
	if err != nil || len(selector) == 0 {
		return false
	}
	for key, value := range selector {
		if have, ok := podLabels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

func podNeeds(pod *corev1.PodSpec, out *refs) {
	// "default" exists in every namespace of every cluster.
	if pod.ServiceAccountName != "default" {
		out.core("ServiceAccount", pod.ServiceAccountName)
	}
	for _, s := range pod.ImagePullSecrets {
		out.core("Secret", s.Name)
	}
	for i := range pod.InitContainers {
		containerNeeds(pod.InitContainers[i].Env, pod.InitContainers[i].EnvFrom, out)
	}
	for i := range pod.Containers {
		containerNeeds(pod.Containers[i].Env, pod.Containers[i].EnvFrom, out)
	}
	for i := range pod.EphemeralContainers {
		containerNeeds(pod.EphemeralContainers[i].Env, pod.EphemeralContainers[i].EnvFrom, out)
	}
	for i := range pod.Volumes {
		volumeNeeds(&pod.Volumes[i].VolumeSource, out)
	}
	out.global(schedulingGroup, "PriorityClass", pod.PriorityClassName)
	if pod.RuntimeClassName != nil {
		out.global(nodeGroup, "RuntimeClass", *pod.RuntimeClassName)
	}
}

func containerNeeds(env []corev1.EnvVar, from []corev1.EnvFromSource, out *refs) {
	for _, f := range from {
		if f.ConfigMapRef != nil {
			out.read("ConfigMap", f.ConfigMapRef.Name, f.ConfigMapRef.Optional)
		}
		if f.SecretRef != nil {
			out.read("Secret", f.SecretRef.Name, f.SecretRef.Optional)
		}
	}
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
			out.read("ConfigMap", ref.Name, ref.Optional)
		}
		if ref := e.ValueFrom.SecretKeyRef; ref != nil {
			out.read("Secret", ref.Name, ref.Optional)
		}
	}
}

func volumeNeeds(v *corev1.VolumeSource, out *refs) {
	local := func(ref *corev1.LocalObjectReference) {
		if ref != nil {
			out.read("Secret", ref.Name, nil)
		}
	}
	switch {
	case v.ConfigMap != nil:
		out.read("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
	case v.Secret != nil:
		out.read("Secret", v.Secret.SecretName, v.Secret.Optional)
	case v.PersistentVolumeClaim != nil:
		out.core("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			out.global(storageGroup, "StorageClass", cmp.Or(t.Annotations[corev1.BetaStorageClassAnnotation], ptr.Deref(t.Spec.StorageClassName, "")))
		}
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				out.read("ConfigMap", s.ConfigMap.Name, s.ConfigMap.Optional)
			}
			if s.Secret != nil {
				out.read("Secret", s.Secret.Name, s.Secret.Optional)
			}
		}
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		out.read("Secret", v.AzureFile.SecretName, nil)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	}
}

func serviceAccountNeeds(obj *unstructured.Unstructured, out *refs) error {
	for _, field := range []string{"imagePullSecrets", "secrets"} {
		for _, ref := range items(obj.Object, field) {
			out.core("Secret", text(ref, "name"))
		}
	}
	return nil
}

func statefulSetNeeds(obj *unstructured.Unstructured, out *refs) error {
	out.core("Service", text(obj.Object, "spec", "serviceName"))
	for _, claim := range items(obj.Object, "spec", "volumeClaimTemplates") {
		out.global(storageGroup, "StorageClass", storageClassOf(claim))
	}
	return nil
}
