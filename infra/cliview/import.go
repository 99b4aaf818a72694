package cliview

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

// Import annotates an object with the ID of an existing resource, and shows the plan. An object that does not
// exist is created with an empty spec, if its kind permits that.
func (s *Session) Import(ctx context.Context, word, name, id, planName string, opts PlanOptions) (bool, error) {
	if id == "" {
		return false, errors.New("the ID is empty: use the provider's import ID of the resource, described in its documentation")
	}
	if strings.ContainsAny(word+name, "/[\"") {
		return false, fmt.Errorf("invalid object %s %s: use KIND NAME ID, such as network main net-123", word, name)
	}
	known, err := s.kinds()
	if err != nil {
		return false, err
	}
	k, name, err := known.find("kind", word+"/"+name, s.Namespace, nil)
	if err != nil {
		return false, err
	}
	if err := s.annotate(ctx, k, name, id); err != nil {
		return false, err
	}
	return s.Plan(ctx, &Request{Name: planName, Targets: []string{k.id() + "/" + name}}, opts)
}

// annotate writes the ID on the object.
func (s *Session) annotate(ctx context.Context, k kind, name, id string) error {
	what := k.id() + "/" + name
	objects := s.Dynamic.Resource(k.GroupVersionResource).Namespace(s.Namespace)
	is, err := objects.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s.createEmpty(ctx, k, name, id)
	case err != nil:
		return fmt.Errorf("read %s: %w", what, err)
	case slices.Contains(is.GetFinalizers(), infra.Finalizer):
		return fmt.Errorf("%s already has a resource: import into another object, or make this one forget its resource: annotate it with %s=%s and delete it",
			what, infra.DeletionAnnotation, infra.DeletionForget)
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{infra.ImportAnnotation: id}}})
	if err != nil {
		return err
	}
	if _, err = objects.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: "atoll"}); err != nil {
		return fmt.Errorf("annotate %s with the ID: %w", what, err)
	}
	s.infof("%s annotated with %s=%s", what, infra.ImportAnnotation, id)
	return nil
}

// createEmpty creates an object with an empty spec and the import annotation, if its kind requires no
// argument. The API accepts any empty object with that annotation, but no plan could follow, so the kind
// is asked about one without it.
func (s *Session) createEmpty(ctx context.Context, k kind, name, id string) error {
	what := k.id() + "/" + name
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	u.SetGroupVersionKind(k.GroupVersion().WithKind(k.name))
	u.SetName(name)
	objects := s.Dynamic.Resource(k.GroupVersionResource).Namespace(s.Namespace)
	_, err := objects.Create(ctx, u, metav1.CreateOptions{FieldManager: "atoll", DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsInvalid(err) {
		return fmt.Errorf("%s not found, and an empty one is invalid: %w\nComplete this manifest and `kubectl apply` it; the next plan imports the resource:\n\n%s", what, err, s.skeleton(k, name, id, err))
	}
	if err == nil {
		u.SetAnnotations(map[string]string{infra.ImportAnnotation: id})
		_, err = objects.Create(ctx, u, metav1.CreateOptions{FieldManager: "atoll"})
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", what, err)
	}
	s.infof("%s created with an empty spec: the plan shows the resource's attributes; add them to the spec", what)
	return nil
}

// skeleton returns a manifest with the fields that the API requires.
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
