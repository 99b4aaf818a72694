package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// maxContents bounds the contents of a type, as JSON: each Workspace with the type has a copy, which all servers hold in memory.
const maxContents = 64 << 10

// ownAccounts are prefixes of users that exist in one workspace alone. In a workspace that one of them creates, another user may have
// the name.
var ownAccounts = []string{"system:serviceaccount:", "system:bootstrap:", "system:node:"}

// IsOwnAccount reports whether a user exists in one workspace alone.
func IsOwnAccount(name string) bool {
	return slices.ContainsFunc(ownAccounts, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// Type reads a WorkspaceType of the root.
// Errors: ErrNotFound, and those of the API.
func (d *Directory) Type(ctx context.Context, name string) (*v1alpha1.WorkspaceType, error) {
	u, err := d.client.Resource(v1alpha1.WorkspaceTypeResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && u.GetDeletionTimestamp() != nil {
		return nil, ErrNotFound
	}
	of := &v1alpha1.WorkspaceType{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, of)
	}
	if err != nil {
		return nil, fmt.Errorf("read WorkspaceType %q: %w", name, err)
	}
	return of, nil
}

// SetType sets in a new Workspace what a type determines: the name of the type, the limits and the placement that the Workspace leaves
// out, and the contents. nil stands for no type. An object whose spec has other types than the schema's is left as it is: validation rejects it.
func SetType(w *unstructured.Unstructured, of *v1alpha1.WorkspaceType) error {
	unstructured.RemoveNestedField(w.Object, "spec", "initial") // no user sets it
	if of == nil {
		return nil
	}
	if _, ok := w.Object["spec"].(map[string]any); w.Object["spec"] != nil && !ok {
		return nil
	}
	if err := unstructured.SetNestedField(w.Object, of.Name, "spec", "type"); err != nil {
		return err
	}
	if of.Spec.Limits != nil {
		if err := setLimits(w, of.Spec.Limits); err != nil {
			return err
		}
	}
	if given, _, _ := unstructured.NestedFieldNoCopy(w.Object, "spec", "placement"); of.Spec.Placement != nil && given == nil {
		placement, err := runtime.DefaultUnstructuredConverter.ToUnstructured(of.Spec.Placement)
		if err != nil {
			return err
		}
		if err := unstructured.SetNestedMap(w.Object, placement, "spec", "placement"); err != nil {
			return err
		}
	}
	initial, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&of.Spec.WorkspaceContents)
	if err != nil || len(initial) == 0 {
		return err
	}
	return unstructured.SetNestedMap(w.Object, initial, "spec", "initial")
}

// setLimits sets the limits that a Workspace leaves out.
func setLimits(w *unstructured.Unstructured, defaults *v1alpha1.WorkspaceLimits) error {
	missing, err := runtime.DefaultUnstructuredConverter.ToUnstructured(defaults)
	if err != nil {
		return err
	}
	given, found, _ := unstructured.NestedFieldNoCopy(w.Object, "spec", "limits")
	limits, ok := given.(map[string]any)
	if found && given != nil && !ok {
		return nil
	}
	for name, value := range missing {
		if limits[name] != nil {
			continue
		}
		if err := unstructured.SetNestedField(w.Object, value, "spec", "limits", name); err != nil {
			return err
		}
	}
	return nil
}

// KeepType makes an update of a Workspace keep what its type has set. A client that replaces the object may leave it out.
func KeepType(old, w *unstructured.Unstructured) {
	spec, ok := w.Object["spec"].(map[string]any)
	if w.Object["spec"] != nil && !ok {
		return
	}
	initial, found, _ := unstructured.NestedFieldCopy(old.Object, "spec", "initial")
	name := TypeOf(old)
	if spec == nil && (found || name != "") {
		spec = map[string]any{}
		w.Object["spec"] = spec
	}
	delete(spec, "initial")
	if found {
		spec["initial"] = initial
	}
	if given, ok := spec["type"].(string); name != "" && (ok && given == "" || spec["type"] == nil) {
		spec["type"] = name
	}
}

// TypeOf returns the name of the type of a Workspace, "" without one.
func TypeOf(w *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(w.Object, "spec", "type")
	return name
}

// KeepAPIs sets in a type what the server recorded about its APIs before, and reports whether that is possible: the list must be the same.
func KeepAPIs(old, is *v1alpha1.WorkspaceType) bool {
	recorded := map[string]v1alpha1.InitialAPI{}
	for _, api := range old.Spec.APIs {
		recorded[api.Name] = api
	}
	if len(old.Spec.APIs) != len(is.Spec.APIs) {
		return false
	}
	for i, api := range is.Spec.APIs {
		before, ok := recorded[api.Name]
		if !ok || before.Path != api.Path {
			return false
		}
		is.Spec.APIs[i] = before
	}
	return true
}

// CheckType returns the problems of a type that the schema accepts.
func CheckType(of *v1alpha1.WorkspaceType) (all field.ErrorList) {
	spec := field.NewPath("spec")
	for i, namespace := range of.Spec.Namespaces {
		all = append(all, checkNamespace(&namespace, spec.Child("namespaces").Index(i))...)
	}
	for i, access := range of.Spec.Access {
		all = append(all, checkAccess(&access, spec.Child("access").Index(i))...)
	}
	if data, err := json.Marshal(of.Spec.WorkspaceContents); err != nil || len(data) > maxContents {
		all = append(all, field.TooLong(spec, "", maxContents))
	}
	return all
}

// everywhere are the namespaces that every workspace has.
var everywhere = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

func checkNamespace(namespace *v1alpha1.InitialNamespace, at *field.Path) (all field.ErrorList) {
	for _, problem := range validation.IsDNS1123Label(namespace.Name) {
		all = append(all, field.Invalid(at.Child("name"), namespace.Name, problem))
	}
	if slices.Contains(everywhere, namespace.Name) {
		all = append(all, field.Invalid(at.Child("name"), namespace.Name, "every workspace has this namespace: leave it out"))
	}
	if label, ok := namespace.Labels[corev1.LabelMetadataName]; ok && label != namespace.Name {
		all = append(all, field.Invalid(at.Child("labels").Key(corev1.LabelMetadataName), label, "the server sets this label to the name: leave it out"))
	}
	all = append(all, metav1validation.ValidateLabels(namespace.Labels, at.Child("labels"))...)
	return append(all, apivalidation.ValidateAnnotations(namespace.Annotations, at.Child("annotations"))...)
}

func checkAccess(access *v1alpha1.InitialAccess, at *field.Path) (all field.ErrorList) {
	for _, problem := range path.IsValidPathSegmentName(access.Role) {
		all = append(all, field.Invalid(at.Child("role"), access.Role, problem))
	}
	if len(access.Users)+len(access.Groups) == 0 {
		all = append(all, field.Required(at.Child("users"), "name users or groups that get the role"))
	}
	for i, user := range access.Users {
		if IsOwnAccount(user) {
			all = append(all, field.Invalid(at.Child("users").Index(i), user, "this user exists in one workspace alone, and another one has the name in each new workspace: name a user who is the same in all"))
		}
	}
	return all
}
