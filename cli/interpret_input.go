package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// interpretInput is the contents of the files to interpret.
type interpretInput struct {
	objects         []*unstructured.Unstructured
	reports         []*unstructured.Unstructured // the clusters' copies of the objects
	definitions     []*unstructured.Unstructured
	interpretations []*v1alpha1.ResourceInterpretation
}

// decodeObjects decodes YAML or JSON, including multiple documents and Lists.
func decodeObjects(data []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	decoder := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for n := 1; ; n++ {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if trimmed := bytes.TrimSpace(raw.Raw); len(trimmed) == 0 || string(trimmed) == "null" {
			continue
		}
		obj := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw.Raw, &obj.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if obj.IsList() {
			err := obj.EachListItem(func(item runtime.Object) error {
				out = append(out, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("document %d: %w", n, err)
			}
			continue
		}
		if obj.GetAPIVersion() == "" || obj.GetKind() == "" {
			return nil, fmt.Errorf("document %d has no apiVersion or no kind", n)
		}
		out = append(out, obj)
	}
}

func (s *interpretInput) add(objects []*unstructured.Unstructured) error {
	for _, obj := range objects {
		gk := obj.GroupVersionKind().GroupKind()
		switch {
		case gk == schema.GroupKind{Group: v1alpha1.Group, Kind: "ResourceInterpretation"}:
			var in v1alpha1.ResourceInterpretation
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, &in, true); err != nil {
				return fmt.Errorf("ResourceInterpretation %s: %w", obj.GetName(), err)
			}
			s.interpretations = append(s.interpretations, &in)
		case obj.GetAnnotations()[v1alpha1.ClusterAnnotation] != "":
			s.reports = append(s.reports, obj)
		default:
			if gk == (schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}) {
				s.definitions = append(s.definitions, obj)
			}
			s.objects = append(s.objects, obj)
		}
	}
	return nil
}

// knowledge combines the built-in table, the definitions, the common conventions and
// the interpretations, with the answers of their webhooks.
func (s *interpretInput) knowledge(answers interpret.Answers) (interpret.Catalog, error) {
	known := interpret.BuiltIn().AnsweredBy(answers)
	for _, definition := range s.definitions {
		k, err := interpret.FromCRD(definition)
		if err != nil {
			return known, err
		}
		if _, builtIn := known.Find(k.GroupKind()); !builtIn {
			known = known.With(k)
		}
	}
	for _, obj := range s.objects {
		gvk := obj.GroupVersionKind()
		if _, ok := known.Find(gvk.GroupKind()); !ok {
			known = known.With(interpret.Generic(gvk, "", obj.GetNamespace() == "", nil))
		}
	}
	customizations, invalid := interpret.Customizations(s.interpretations)
	var errs []error
	for _, in := range s.interpretations {
		if err := invalid[in.Name]; err != nil {
			errs = append(errs, err)
		}
	}
	return known.WithCustomizations(customizations...), errors.Join(errs...)
}

// reportsOf returns the clusters' copies of an object.
func (s *interpretInput) reportsOf(obj *unstructured.Unstructured) map[string]*unstructured.Unstructured {
	out := map[string]*unstructured.Unstructured{}
	for _, r := range s.reports {
		same := r.GroupVersionKind().GroupKind() == obj.GroupVersionKind().GroupKind() &&
			r.GetNamespace() == obj.GetNamespace() && r.GetName() == obj.GetName()
		if same {
			out[r.GetAnnotations()[v1alpha1.ClusterAnnotation]] = r
		}
	}
	return out
}

// clusters returns the names to divide replicas among.
func (s *interpretInput) clusters(given []string) []string {
	if len(given) > 0 {
		return given
	}
	var out []string
	for _, r := range s.reports {
		out = append(out, r.GetAnnotations()[v1alpha1.ClusterAnnotation])
	}
	if len(out) == 0 {
		return []string{"east", "west"}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
