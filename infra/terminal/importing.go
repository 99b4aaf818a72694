package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/infra"
)

// Import has an object take over a resource that there is, and shows the plan of it. An object that is not written
// yet is made with nothing in it, if its kind allows that.
func (s *Session) Import(ctx context.Context, word, name, id, planName string, how Planning) (bool, error) {
	if id == "" {
		return false, errors.New("the ID is empty: give that by which the provider knows the resource; its documentation says what that is")
	}
	if strings.ContainsAny(word+name, "/[\"") {
		return false, fmt.Errorf("%s %s does not name an object: write KIND NAME ID, as in network main net-123", word, name)
	}
	known, err := s.kinds()
	if err != nil {
		return false, err
	}
	k, name, err := known.find("kind", word+"/"+name, s.Namespace, nil)
	if err != nil {
		return false, err
	}
	if err := s.adopt(ctx, k, name, id); err != nil {
		return false, err
	}
	return s.Plan(ctx, &Request{Name: planName, Targets: []string{k.id() + "/" + name}}, how)
}

// adopt writes the ID on the object.
func (s *Session) adopt(ctx context.Context, k kind, name, id string) error {
	what := k.id() + "/" + name
	objects := s.Dynamic.Resource(k.GroupVersionResource).Namespace(s.Namespace)
	is, err := objects.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s.blank(ctx, k, name, id)
	case err != nil:
		return fmt.Errorf("read %s: %w", what, err)
	case slices.Contains(is.GetFinalizers(), infra.Finalizer):
		return fmt.Errorf("%s has a resource already: import into another object, or have this one let go of its own: annotate it with %s=%s and delete it",
			what, infra.DeletionAnnotation, infra.DeletionForget)
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{infra.ImportAnnotation: id}}})
	if err != nil {
		return err
	}
	if _, err = objects.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: "atoll"}); err != nil {
		return fmt.Errorf("annotate %s with the ID: %w", what, err)
	}
	s.tell("%s annotated with %s=%s", what, infra.ImportAnnotation, id)
	return nil
}

// blank makes an object that says nothing but what it takes over.
func (s *Session) blank(ctx context.Context, k kind, name, id string) error {
	what := k.id() + "/" + name
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	u.SetGroupVersionKind(k.GroupVersion().WithKind(k.name))
	u.SetName(name)
	u.SetAnnotations(map[string]string{infra.ImportAnnotation: id})
	_, err := s.Dynamic.Resource(k.GroupVersionResource).Namespace(s.Namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: "atoll"})
	switch {
	case apierrors.IsInvalid(err):
		return fmt.Errorf("there is no %s, and one with nothing in it is refused: %w\nComplete this, `kubectl apply` it, and import again:\n\n%s", what, err, s.skeleton(k, name, id, err))
	case err != nil:
		return fmt.Errorf("make %s: %w", what, err)
	}
	s.tell("%s made, with nothing in it yet: the plan shows what the resource is like; write that into its spec", what)
	return nil
}

// skeleton is a manifest with what the API found to be missing.
func (s *Session) skeleton(k kind, name, id string, refused error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  namespace: %s\n  annotations: {%s: %q}\nspec:\n",
		k.GroupVersion(), k.name, name, s.Namespace, infra.ImportAnnotation, id)
	var status apierrors.APIStatus
	fields := 0
	if errors.As(refused, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			path, inSpec := strings.CutPrefix(cause.Field, "spec.")
			if inSpec && cause.Type == metav1.CauseTypeFieldValueRequired && !strings.ContainsAny(path, ".[") {
				fmt.Fprintf(&b, "  %s:   # required\n", path)
				fields++
			}
		}
	}
	if fields == 0 {
		fmt.Fprintf(&b, "  # see `kubectl explain %s.spec`\n", k.Resource)
	}
	return b.String()
}
