package cliview

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// objectKind is a kind of object that the commands use.
type objectKind struct {
	resource schema.GroupVersionResource
	kind     string
	// one and many are its names in messages.
	one, many string
}

func planKind() objectKind {
	return objectKind{v1alpha1.PlanResource, "Plan", "plan", "plans"}
}

func applyKind() objectKind {
	return objectKind{v1alpha1.ApplyResource, "Apply", "apply", "applies"}
}

func approvalKind() objectKind {
	return objectKind{v1alpha1.ApprovalResource, "Approval", "approval", "approvals"}
}

// id returns an object's name as kubectl prints it: plan.infra.atoll.dev/NAME.
func (n objectKind) id(name string) string { return n.one + "." + v1alpha1.Group + "/" + name }

// get reads an object of the namespace. It returns the API's errors unchanged.
func get[T any](ctx context.Context, s *Session, n objectKind, name string) (*T, error) {
	u, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

// list returns all objects of the namespace.
func list[T any](ctx context.Context, s *Session, n objectKind) ([]*T, error) {
	var out []*T
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			one, err := typed[T](&page.Items[i])
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return out, nil
		}
	}
}

// create creates an object in the namespace. The server completes a name that ends with a dash.
func create[T any](ctx context.Context, s *Session, n objectKind, name string, spec any) (*T, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	u.SetAPIVersion(n.resource.GroupVersion().String())
	u.SetKind(n.kind)
	if name[len(name)-1] == '-' {
		u.SetGenerateName(name)
	} else {
		u.SetName(name)
	}
	made, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: "atoll"})
	if err != nil {
		return nil, err
	}
	return typed[T](made)
}

// patch applies a merge patch to an object of the namespace.
func patch[T any](ctx context.Context, s *Session, n objectKind, name, what string) (*T, error) {
	u, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).Patch(ctx, name, types.MergePatchType, []byte(what), metav1.PatchOptions{FieldManager: "atoll"})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w: the server may have another version than this command", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}
