package syncer

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// volumeClient reads and writes claims and volumes of the member.
type volumeClient struct {
	cluster string
	dyn     dynamic.Interface
}

var (
	claimsResource      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	volumesResource     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	podsResource        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	attachmentsResource = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
	classesResource     = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}
)

func read[T any](ctx context.Context, c *volumeClient, of schema.GroupVersionResource, namespace, name string) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	u, err := c.dyn.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", of.Resource, name, err)
	}
	return typed[T](u)
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

// claim returns a claim; nil if it does not exist.
func (c *volumeClient) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return read[corev1.PersistentVolumeClaim](ctx, c, claimsResource, namespace, name)
}

// volume returns a PersistentVolume; nil if it does not exist.
func (c *volumeClient) volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return read[corev1.PersistentVolume](ctx, c, volumesResource, "", name)
}

// class returns a StorageClass; nil if it does not exist.
func (c *volumeClient) class(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	if name == "" {
		return nil, nil
	}
	return read[storagev1.StorageClass](ctx, c, classesResource, "", name)
}

// each calls use for each object of a list, until it returns false.
func each[T any](ctx context.Context, c *volumeClient, of schema.GroupVersionResource, namespace string, use func(*T) bool) error {
	list := func(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return c.dyn.Resource(of).Namespace(namespace).List(ctx, o)
	}
	err := fleet.EachPage(ctx, metav1.ListOptions{}, list, func(page *unstructured.UnstructuredList) (more bool, err error) {
		for i := range page.Items {
			item, err := typed[T](&page.Items[i])
			if err != nil || !use(item) {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", of.Resource, err)
	}
	return nil
}

// volumesLike returns the PersistentVolumes that have the name of a described volume, or lead to it.
func (c *volumeClient) volumesLike(ctx context.Context, v *v1alpha1.VolumeDescription) (like []corev1.PersistentVolume, err error) {
	err = each(ctx, c, volumesResource, "", func(pv *corev1.PersistentVolume) bool {
		if pv.Name == v.Name || volumes.SameVolume(pv, v) {
			like = append(like, *pv)
		}
		return true
	})
	return like, err
}

// userOf says what uses a claim or its volume; "" if nothing does.
func (c *volumeClient) userOf(ctx context.Context, namespace, claim, volume string) (user string, err error) {
	err = each(ctx, c, podsResource, namespace, func(pod *corev1.Pod) bool {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return true
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
				user = "Pod " + pod.Name + " uses it"
				return false
			}
		}
		return true
	})
	if err != nil || user != "" {
		return user, err
	}
	err = each(ctx, c, attachmentsResource, "", func(a *storagev1.VolumeAttachment) bool {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == volume {
			user = "it is attached to node " + a.Spec.NodeName
		}
		return user == ""
	})
	return user, err
}

func create[T any](ctx context.Context, c *volumeClient, of schema.GroupVersionResource, namespace, kind string, obj *T) (*T, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetAPIVersion("v1")
	u.SetKind(kind)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out, err := c.dyn.Resource(of).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("create the %s: %w", kind, err)
	}
	return typed[T](out)
}

func (c *volumeClient) createVolume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return create(ctx, c, volumesResource, "", "PersistentVolume", pv)
}

func (c *volumeClient) createClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return create(ctx, c, claimsResource, claim.Namespace, "PersistentVolumeClaim", claim)
}

// patchVolume changes a PersistentVolume unless it has changed since it was read.
func (c *volumeClient) patchVolume(ctx context.Context, pv *corev1.PersistentVolume, what string, metadata, spec map[string]any) error {
	metadata["uid"], metadata["resourceVersion"] = pv.UID, pv.ResourceVersion
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.dyn.Resource(volumesResource).Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("%s PersistentVolume %s: %w", what, pv.Name, err)
	}
	return nil
}

// setReclaim sets the reclaim policy of a PersistentVolume. With remember, an annotation keeps the one that it had.
func (c *volumeClient) setReclaim(ctx context.Context, pv *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy, remember bool) error {
	annotation := any(nil)
	if remember {
		annotation = string(reclaimPolicy(pv))
	}
	if _, has := pv.Annotations[v1alpha1.ReclaimPolicyAnnotation]; pv.Spec.PersistentVolumeReclaimPolicy == policy && has == remember {
		return nil
	}
	return c.patchVolume(ctx, pv, "set the reclaim policy of",
		map[string]any{"annotations": map[string]any{v1alpha1.ReclaimPolicyAnnotation: annotation}},
		map[string]any{"persistentVolumeReclaimPolicy": policy})
}

// unbind lets a new claim of the same name have a PersistentVolume.
func (c *volumeClient) unbind(ctx context.Context, pv *corev1.PersistentVolume) error {
	return c.patchVolume(ctx, pv, "release", map[string]any{}, map[string]any{"claimRef": map[string]any{"uid": nil, "resourceVersion": nil}})
}

// patchClaim changes the metadata of a claim unless it has changed since it was read.
func (c *volumeClient) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata map[string]any) error {
	metadata["uid"], metadata["resourceVersion"] = claim.UID, claim.ResourceVersion
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.dyn.Resource(claimsResource).Namespace(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("change the claim: %w", err)
	}
	return nil
}

func (c *volumeClient) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	return c.delete(ctx, claimsResource, claim.Namespace, claim.Name, exactly(claim.UID, claim.ResourceVersion))
}

func (c *volumeClient) deleteVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.DeletionTimestamp != nil {
		return nil
	}
	return c.delete(ctx, volumesResource, "", pv.Name, exactly(pv.UID, pv.ResourceVersion))
}

func (c *volumeClient) delete(ctx context.Context, of schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.dyn.Resource(of).Namespace(namespace).Delete(ctx, name, o)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete %s %s: %w", of.Resource, name, err)
}
