package tenancy

import (
	"unique"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// held makes of an object of the API the value that a Directory holds. A server holds one for each workspace, also for those that sleep.
// So it lacks annotations, which may be large, and the contents of a workspace that has them already. Texts that most
// workspaces have in common are held once.
func held(obj any) (any, error) {
	decoded, err := controllers.Decode[v1alpha1.Workspace](obj)
	w, ok := decoded.(*v1alpha1.Workspace)
	if err != nil || !ok {
		return decoded, err
	}
	w.Annotations = nil
	if w.Status.Phase == v1alpha1.WorkspaceReady {
		w.Spec.Initial = nil
	}
	w.APIVersion, w.Kind = common(w.APIVersion), common(w.Kind)
	w.Spec.Type, w.Status.Phase = common(w.Spec.Type), common(w.Status.Phase)
	if owner := w.Spec.Owner; owner != nil {
		owner.Username = common(owner.Username)
		for i := range owner.Groups {
			owner.Groups[i] = common(owner.Groups[i])
		}
	}
	for i := range w.Finalizers {
		w.Finalizers[i] = common(w.Finalizers[i])
	}
	for i := range w.Status.Conditions {
		c := &w.Status.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = common(c.Type), common(c.Status), common(c.Reason), common(c.Message)
	}
	return w, nil
}

// common returns the text in the memory that all equal texts share.
func common[T ~string](text T) T { return unique.Make(text).Value() }
