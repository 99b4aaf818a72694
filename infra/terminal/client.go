package terminal

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

// noun is a kind of object that is spoken with about.
type noun struct {
	resource schema.GroupVersionResource
	kind     string
	// one and many are what people call them.
	one, many string
}

func aPlan() noun {
	return noun{v1alpha1.PlanResource, "Plan", "plan", "plans"}
}

func anApply() noun {
	return noun{v1alpha1.ApplyResource, "Apply", "apply", "applies"}
}

func anApproval() noun {
	return noun{v1alpha1.ApprovalResource, "Approval", "approval", "approvals"}
}

// id is how kubectl names an object: plan.infra.atoll.dev/NAME.
func (n noun) id(name string) string { return n.one + "." + v1alpha1.Group + "/" + name }

// get reads an object of the namespace. Its errors are the API's.
func get[T any](ctx context.Context, s *Session, n noun, name string) (*T, error) {
	u, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

// list reads all objects of the namespace.
func list[T any](ctx context.Context, s *Session, n noun) ([]*T, error) {
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

// create makes an object of the namespace. A name that ends with a dash is completed by the server.
func create[T any](ctx context.Context, s *Session, n noun, name string, spec any) (*T, error) {
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

// patch merges into an object of the namespace.
func patch[T any](ctx context.Context, s *Session, n noun, name, what string) (*T, error) {
	u, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).Patch(ctx, name, types.MergePatchType, []byte(what), metav1.PatchOptions{FieldManager: "atoll"})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read %s %s: %w: the server may be of another version than this command", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}
