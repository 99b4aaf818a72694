package cliview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Request is a plan request in the user's terms.
type Request struct {
	// Name of the plan; the server generates one if it is empty.
	Name     string
	Mode     v1alpha1.PlanMode
	Refresh  bool
	Selector string
	// Targets, Exclude and Replace are KIND/NAME, or addresses as in a plan.
	Targets, Exclude, Replace []string
	// Objects are supposed to exist, for a speculative plan.
	Objects  []*unstructured.Unstructured
	Rollback string
	// Parallelism is how many resources are planned concurrently; 0 uses the server's default.
	Parallelism int32
}

// maxObjects is the API's limit for a plan.
const maxObjects = 1000

// Check rejects contradictory requests before any call.
func (r *Request) Check() error {
	if len(r.Replace) > 0 && r.Mode == v1alpha1.PlanDestroy {
		return errors.New("--replace and --destroy are mutually exclusive: choose one")
	}
	if len(r.Replace) > 0 && r.Mode == v1alpha1.PlanRefreshOnly {
		return errors.New("--replace and --refresh-only are mutually exclusive: choose one")
	}
	_, err := labelSelector(r.Selector)
	return err
}

// labelSelector parses a selector in kubectl's syntax, including !=, which metav1.ParseToLabelSelector
// rejects.
func labelSelector(text string) (*metav1.LabelSelector, error) {
	if text == "" {
		return nil, nil
	}
	requirements, err := labels.ParseToRequirements(text)
	if err != nil {
		return nil, fmt.Errorf("--selector %s: %w: use kubectl's syntax, such as tier=gold,!temporary", text, err)
	}
	out := &metav1.LabelSelector{}
	for _, r := range requirements {
		e := metav1.LabelSelectorRequirement{Key: r.Key(), Values: slices.Sorted(slices.Values(r.ValuesUnsorted()))}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			e.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			e.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			e.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			e.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			return nil, fmt.Errorf("--selector %s: unsupported operator %q: use =, !=, in, notin or existence", text, r.Operator())
		}
		out.MatchExpressions = append(out.MatchExpressions, e)
	}
	return out, nil
}

// spec converts the request to a plan's spec.
func (s *Session) spec(r *Request) (*v1alpha1.PlanSpec, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	spec := &v1alpha1.PlanSpec{Mode: r.Mode, Refresh: r.Refresh, Rollback: r.Rollback, Parallelism: r.Parallelism}
	var err error
	if spec.Selector, err = labelSelector(r.Selector); err != nil {
		return nil, err
	}
	if spec.Objects, err = s.speculative(r.Objects); err != nil {
		return nil, err
	}
	if len(r.Targets)+len(r.Exclude)+len(r.Replace) == 0 {
		return spec, nil
	}
	language, err := expr.New()
	if err != nil {
		return nil, err
	}
	known, err := s.kinds()
	if err != nil {
		return nil, err
	}
	for _, list := range []struct {
		flag string
		from []string
		to   *[]v1alpha1.ObjectReference
	}{{"--target", r.Targets, &spec.Targets}, {"--exclude", r.Exclude, &spec.Exclude}, {"--replace", r.Replace, &spec.Replace}} {
		if len(list.from) > maxObjects {
			return nil, fmt.Errorf("%s is given %d times, but a plan takes at most %d: use --selector", list.flag, len(list.from), maxObjects)
		}
		for _, text := range list.from {
			k, name, err := known.find(list.flag, text, s.Namespace, language)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, k.reference(name))
		}
	}
	return spec, nil
}

// speculative returns the objects of providers' kinds in files. It lists the others, for which the plan uses
// the objects stored in Atoll.
func (s *Session) speculative(objects []*unstructured.Unstructured) ([]runtime.RawExtension, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	var out []runtime.RawExtension
	var others []string
	for _, o := range objects {
		id := o.GetKind() + "/" + o.GetName()
		if !isProviderGroup(o.GroupVersionKind().Group) {
			others = append(others, id)
			continue
		}
		if o.GetName() == "" {
			return nil, fmt.Errorf("an object of kind %s in the files has no metadata.name", o.GetKind())
		}
		if o.GetNamespace() == "" {
			o.SetNamespace(s.Namespace)
		}
		if o.GetNamespace() != s.Namespace {
			return nil, fmt.Errorf("%s has namespace %s, but the plan is for %s: plan one namespace at a time, with -n %s", id, o.GetNamespace(), s.Namespace, o.GetNamespace())
		}
		text, err := json.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		out = append(out, runtime.RawExtension{Raw: text})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the files have no object of a Provider's kind (group *.%s), only %s", v1alpha1.ProvidersDomain, shortened(others))
	}
	if len(out) > maxObjects {
		return nil, fmt.Errorf("the files have %d resources, but a speculative plan takes at most %d: `kubectl apply` them, which changes no resources by itself, and run `%s`",
			len(out), maxObjects, s.command("plan"))
	}
	if len(others) > 0 {
		s.infof("Not of a Provider's kind, using the objects in Atoll: %s", shortened(others))
	}
	return out, nil
}

func shortened(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// CreatePlan creates a plan without waiting for it.
func (s *Session) CreatePlan(ctx context.Context, r *Request) (*v1alpha1.Plan, error) {
	spec, err := s.spec(r)
	if err != nil {
		return nil, err
	}
	name := r.Name
	if name == "" {
		name = "plan-"
	}
	p, err := create[v1alpha1.Plan](ctx, s, planKind(), name, spec)
	if err != nil {
		return nil, s.explain(ctx, "create a plan", planKind(), "", err)
	}
	return p, nil
}
