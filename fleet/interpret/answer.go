package interpret

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Bounds of an answer.
const (
	maxCount        = 1 << 30
	maxComponents   = 64
	maxDependencies = 256
)

// Answer is the answer to one question. The field of the operation is set.
type Answer struct {
	// Replicas is the replica count (InterpretReplica).
	Replicas *int64 `json:"replicas,omitempty"`
	// Pod is what one replica requires, as the spec of a pod; nil if that is not known
	// (InterpretReplica).
	Pod map[string]any `json:"pod,omitempty"`
	// Components are the parts of the object (InterpretComponent).
	Components []Component `json:"components,omitempty"`
	// Object is the object of the question with the webhook's changes (ReviseReplica, Retain,
	// AggregateStatus).
	Object map[string]any `json:"object,omitempty"`
	// Healthy is the health of a cluster's object (InterpretHealth).
	Healthy *bool `json:"healthy,omitempty"`
	// Status is the collected part of the status in a cluster (InterpretStatus).
	Status map[string]any `json:"status,omitempty"`
	// Dependencies are the objects that have to be where the object is (InterpretDependency).
	Dependencies []Dependency `json:"dependencies,omitempty"`
}

// DecodeAnswer decodes an answer in JSON. Whole numbers in objects stay int64, as in the objects themselves.
func DecodeAnswer(data []byte) (Answer, error) {
	var a Answer
	var raw struct{ Object, Status json.RawMessage }
	if err := errors.Join(json.Unmarshal(data, &a), json.Unmarshal(data, &raw)); err != nil {
		return a, fmt.Errorf("decode the answer: %w", err)
	}
	a.Object, a.Status = nil, nil
	for field, into := range map[*json.RawMessage]*map[string]any{&raw.Object: &a.Object, &raw.Status: &a.Status} {
		if len(*field) == 0 {
			continue
		}
		if err := utiljson.Unmarshal(*field, into); err != nil {
			return a, fmt.Errorf("decode the answer: %w", err)
		}
	}
	return a, nil
}

// Dependency names an object. Namespace is "" for kinds without a namespace.
type Dependency struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Check returns why an answer cannot be used. A webhook is not trusted: it may count, name and change
// fields, but not turn an object into another.
func (q Question) Check(a Answer) error {
	switch q.Operation {
	case v1alpha1.InterpretReplica:
		if a.Replicas == nil {
			return errors.New("the response has no replicas")
		}
		if *a.Replicas < 0 || *a.Replicas > maxCount {
			return fmt.Errorf("the response has %d replicas, want 0 to %d", *a.Replicas, maxCount)
		}
		return checkComponents([]Component{{Name: "replica", Pod: a.Pod}})
	case v1alpha1.InterpretComponent:
		return checkComponents(a.Components)
	case v1alpha1.ReviseReplica, v1alpha1.Retain, v1alpha1.AggregateStatus:
		return q.checkObject(a.Object)
	case v1alpha1.InterpretHealth:
		if a.Healthy == nil {
			return errors.New("the response does not have healthy")
		}
	case v1alpha1.InterpretStatus:
		if a.Status == nil {
			return errors.New("the response has no rawStatus that is an object")
		}
	case v1alpha1.InterpretDependency:
		return checkDependencies(a.Dependencies)
	default:
		return fmt.Errorf("unknown operation %q", q.Operation)
	}
	return nil
}

func checkComponents(all []Component) error {
	if len(all) > maxComponents {
		return fmt.Errorf("the response has %d components, want at most %d", len(all), maxComponents)
	}
	for _, c := range all {
		if c.Replicas < 0 || c.Replicas > maxReplicas {
			return fmt.Errorf("component %q has %d replicas, want 0 to %d", c.Name, c.Replicas, maxReplicas)
		}
		if err := c.check(); err != nil {
			return err
		}
	}
	return nil
}

func checkDependencies(all []Dependency) error {
	if len(all) > maxDependencies {
		return fmt.Errorf("the response has %d dependencies, want at most %d", len(all), maxDependencies)
	}
	for i, d := range all {
		if d.APIVersion == "" || d.Kind == "" || d.Name == "" {
			return fmt.Errorf("dependency %d of the response lacks apiVersion, kind or name", i)
		}
	}
	return nil
}

// checkObject returns an error if the patch has made another object of it.
func (q Question) checkObject(is map[string]any) error {
	if is == nil {
		return errors.New("the patch removes the object")
	}
	was := map[string]any{}
	if err := utiljson.Unmarshal(q.Object, &was); err != nil {
		return fmt.Errorf("decode the object of the question: %w", err)
	}
	var changed []string
	for _, field := range []string{"apiVersion", "kind"} {
		if !reflect.DeepEqual(was[field], is[field]) {
			changed = append(changed, field)
		}
	}
	before, after := object(was, "metadata"), object(is, "metadata")
	names := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	slices.Sort(names)
	for _, field := range slices.Compact(names) {
		if field != "labels" && field != "annotations" && !reflect.DeepEqual(before[field], after[field]) {
			changed = append(changed, "metadata."+field)
		}
	}
	x, y := unstructured.Unstructured{Object: was}, unstructured.Unstructured{Object: is}
	if !maps.Equal(ownMarks(x.GetLabels()), ownMarks(y.GetLabels())) || !maps.Equal(ownMarks(x.GetAnnotations()), ownMarks(y.GetAnnotations())) {
		changed = append(changed, "labels or annotations of "+v1alpha1.Group)
	}
	if len(changed) > 0 {
		return fmt.Errorf("the patch changes %s", strings.Join(changed, ", "))
	}
	return nil
}

func ownMarks(all map[string]string) map[string]string {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(key, _ string) bool { return !ownMark(key) })
	if out == nil {
		out = map[string]string{}
	}
	return out
}
