package interpret

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// HomeOf returns the home that a label of a custom resource chooses, or one of its definition, which may be
// nil. It returns "" if neither does.
func HomeOf(obj, definition metav1.Object) v1alpha1.Home {
	for _, o := range []metav1.Object{obj, definition} {
		if o == nil {
			continue
		}
		switch home := v1alpha1.Home(o.GetLabels()[v1alpha1.HomeLabel]); home {
		case v1alpha1.HomeAbove, v1alpha1.HomeMembers:
			return home
		}
	}
	return ""
}

// wroteLast marks, in the trimmed managed fields, a manager that wrote the status after Atoll did.
const wroteLast = "WroteLast"

// TrimToStatusManagers removes an object's managed fields, except the names of those that write its status
// in the control plane beside the manager own. Without times, an object is equal to itself after each of
// their writes.
func TrimToStatusManagers(obj *unstructured.Unstructured, own string) {
	entries := obj.GetManagedFields()
	var since *metav1.Time
	for _, e := range entries {
		if e.Subresource == "status" && e.Manager == own {
			since = e.Time
		}
	}
	var kept []metav1.ManagedFieldsEntry
	for _, e := range entries {
		if e.Subresource != "status" || e.Manager == own {
			continue
		}
		one := metav1.ManagedFieldsEntry{Manager: e.Manager, Subresource: "status"}
		if since != nil && since.Before(e.Time) {
			one.FieldsType = wroteLast
		}
		kept = append(kept, one)
	}
	slices.SortFunc(kept, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(strings.Compare(a.Manager, b.Manager), strings.Compare(a.FieldsType, b.FieldsType))
	})
	obj.SetManagedFields(slices.CompactFunc(kept, func(a, b metav1.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.FieldsType == b.FieldsType
	}))
}

// StatusKeeper returns who writes the status of a custom resource in the control plane, apart from Atoll,
// "" if none does. The object has trimmed managed fields. Tools that restore backups write it once.
func StatusKeeper(obj metav1.Object) string {
	for _, e := range obj.GetManagedFields() {
		if e.Subresource == "status" && !strings.HasPrefix(e.Manager, "velero") {
			return e.Manager
		}
	}
	return ""
}

// StatusContender returns the controller that has written the status since Atoll wrote it, "" if there is
// none. People who edit a status do not count.
func StatusContender(obj metav1.Object) string {
	for _, e := range obj.GetManagedFields() {
		if e.Subresource == "status" && e.FieldsType == wroteLast && !isToolOfPeople(e.Manager) {
			return e.Manager
		}
	}
	return ""
}
