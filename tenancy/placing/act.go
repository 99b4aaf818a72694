package placing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/tenancy/mapping"
)

// act makes one change. What fails is a problem of its object, and the next pass tries again.
func (p *Placer) act(ctx context.Context, a mapping.Action, out *Result) {
	changed, err := p.do(ctx, a)
	if changed {
		out.Changes++
	}
	if err == nil || apierrors.IsConflict(err) && a.Verb == mapping.WriteStatus { // it is a newer one by now
		return
	}
	out.Problems = append(out.Problems, Problem{describe(a), reason(err)})
}

// errWaits is the error of an action that cannot be done now.
type errWaits string

func (e errWaits) Error() string { return string(e) }

func (p *Placer) do(ctx context.Context, a mapping.Action) (changed bool, err error) {
	switch a.Verb {
	case mapping.ApplyNamespace:
		return true, p.applyNamespace(ctx, a.Object)
	case mapping.Apply:
		return true, p.apply(ctx, a)
	case mapping.Delete:
		return p.delete(ctx, a)
	case mapping.WriteStatus:
		return p.writeStatus(ctx, a)
	case mapping.DeleteNamespace:
		return p.deleteNamespace(ctx, a.Object)
	case mapping.Wait:
		return false, errWaits(a.Why)
	}
	return false, nil
}

// applyNamespace creates a namespace of the parent, and permits the user of the child to write the copies in it.
func (p *Placer) applyNamespace(ctx context.Context, ns *unstructured.Unstructured) error {
	api := p.Parent.Resource(namespaces)
	if _, err := api.Create(ctx, ns, metav1.CreateOptions{FieldManager: FieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	found, err := api.Get(ctx, ns.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !p.Child.Owns(found) {
		return errWaits("it was created by another user at this moment")
	}
	if err := p.permit(ctx, ns.GetName()); err != nil {
		return err
	}
	// The digest of its content is written last: without it, the next pass does all of this again.
	applied := ns.DeepCopy()
	applied.SetUID(found.GetUID()) // not one that was created in between
	_, err = api.Apply(ctx, ns.GetName(), applied, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}

// permit gives the user of the child the PlacementRole in a namespace of the parent.
func (p *Placer) permit(ctx context.Context, namespace string) error {
	binding := &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: v1alpha1.PlacementRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: p.Child.User()}},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(binding)
	if err != nil {
		return err
	}
	_, err = p.Parent.Resource(roleBindings).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("permit the workspace to write in namespace %s: %w", namespace, err)
	}
	return nil
}

// apply writes a copy.
func (p *Placer) apply(ctx context.Context, a mapping.Action) error {
	_, err := p.Copies.Resource(a.Kind.GVR()).Namespace(a.Object.GetNamespace()).Apply(ctx, a.Object.GetName(), a.Object,
		metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}

// delete deletes a copy whose object does not exist in the child any more. It asks once more before: an error is not an answer.
func (p *Placer) delete(ctx context.Context, a mapping.Action) (changed bool, err error) {
	if a.Object.GetDeletionTimestamp() != nil {
		return false, errWaits("its copy is being deleted")
	}
	gone, err := p.isGone(ctx, a.Kind, a.Object)
	if err != nil || !gone {
		return false, err
	}
	err = p.Parent.Resource(a.Kind.GVR()).Namespace(a.Object.GetNamespace()).Delete(ctx, a.Object.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(a.Object.GetUID())}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err == nil, err
}

// isGone reports whether the child does not have the object of a copy any more.
func (p *Placer) isGone(ctx context.Context, k interpret.KindInfo, copied *unstructured.Unstructured) (bool, error) {
	ns, err := p.Parent.Resource(namespaces).Get(ctx, copied.GetNamespace(), metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	source := ns.GetAnnotations()[v1alpha1.SourceNamespaceAnnotation]
	if !p.Child.Owns(ns) || p.Child.Namespace(source) != ns.GetName() {
		return false, nil
	}
	found, err := p.Source.Resource(k.GVR()).Namespace(source).Get(ctx, copied.GetName(), metav1.GetOptions{})
	if err != nil {
		if isAbsent(err) {
			err = nil
		}
		return err == nil, err
	}
	return string(found.GetUID()) != copied.GetAnnotations()[v1alpha1.SourceUIDAnnotation], nil
}

// isAbsent reports whether an API that serves the kind says that the object does not exist. If it does not serve the kind any more, nothing is
// known about the object.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// deleteNamespace deletes a namespace of the parent whose namespace in the child does not exist any more.
func (p *Placer) deleteNamespace(ctx context.Context, ns *unstructured.Unstructured) (changed bool, err error) {
	_, err = p.Source.Resource(namespaces).Get(ctx, ns.GetAnnotations()[v1alpha1.SourceNamespaceAnnotation], metav1.GetOptions{})
	if err == nil || !isAbsent(err) {
		return false, err
	}
	err = p.Parent.Resource(namespaces).Delete(ctx, ns.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(ns.GetUID())}})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err == nil, err
}

// writeStatus writes the status of an object of the child, unless this very status was written before.
func (p *Placer) writeStatus(ctx context.Context, a mapping.Action) (changed bool, err error) {
	uid, digest := string(a.Source.GetUID()), mapping.StatusDigest(a.Object)
	if p.written[uid] == digest {
		return false, nil
	}
	_, err = p.Source.Resource(a.Kind.GVR()).Namespace(a.Object.GetNamespace()).UpdateStatus(ctx, a.Object, metav1.UpdateOptions{FieldManager: FieldManager})
	if isAbsent(err) || err != nil && apierrors.IsNotFound(err) { // it was deleted, or the kind has no status of its own
		err = nil
	}
	if err == nil {
		p.written[uid] = digest
	}
	return err == nil, err
}

// describe returns the kind and the name of the object that an action is about, as the users of the child know it.
func describe(a mapping.Action) string {
	switch {
	case a.Source != nil:
		return fmt.Sprintf("%s %s/%s", a.Kind.GVR().GroupResource(), a.Source.GetNamespace(), a.Source.GetName())
	case a.Kind.Resource != "":
		return fmt.Sprintf("%s %s/%s of the workspace above", a.Kind.GVR().GroupResource(), a.Object.GetNamespace(), a.Object.GetName())
	}
	return "namespace " + a.Object.GetName() + " of the workspace above"
}

// maxReason bounds a reason. It may come from a webhook of the parent.
const maxReason = 512

// reason returns an error as users see it.
func reason(err error) string {
	text := err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		text = status.Status().Message
	}
	text = strings.ToValidUTF8(text, "")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// Remove deletes the namespaces of the parent that belong to the child with a UID, and returns how many are left.
func Remove(ctx context.Context, parent dynamic.Interface, uid types.UID) (left int, err error) {
	owned, err := list(ctx, parent.Resource(namespaces), v1alpha1.ChildUIDLabel+"="+string(uid))
	if err != nil {
		return 0, err
	}
	for _, ns := range owned {
		if ns.GetDeletionTimestamp() != nil {
			continue
		}
		err := parent.Resource(namespaces).Delete(ctx, ns.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(ns.GetUID())}})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete namespace %s: %w", ns.GetName(), err)
		}
	}
	return len(owned), nil
}
