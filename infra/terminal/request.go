package terminal

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
	"github.com/atoll-dev/atoll/infra/reference"
)

// Request is what is to be planned, in the words of who asks.
type Request struct {
	// Name of the plan; the server makes one up if it is empty.
	Name     string
	Mode     v1alpha1.PlanMode
	Refresh  bool
	Selector string
	// Targets, Exclude and Replace are KIND/NAME, or addresses as plans show them.
	Targets, Exclude, Replace []string
	// Objects are taken for written.
	Objects  []*unstructured.Unstructured
	Rollback string
	// Parallelism is how many resources are looked at at a time; 0 leaves it to the server.
	Parallelism int32
}

// maxObjects is how many a plan takes.
const maxObjects = 1000

// Check refuses what cannot be meant, before anybody is asked.
func (r *Request) Check() error {
	if len(r.Replace) > 0 && r.Mode == v1alpha1.PlanDestroy {
		return errors.New("--replace makes resources anew and --destroy removes them: choose one")
	}
	if len(r.Replace) > 0 && r.Mode == v1alpha1.PlanRefreshOnly {
		return errors.New("--replace changes resources and --refresh-only changes none: choose one")
	}
	_, err := labelSelector(r.Selector)
	return err
}

// labelSelector reads a selector as kubectl does, with != too, which metav1.ParseToLabelSelector does not.
func labelSelector(text string) (*metav1.LabelSelector, error) {
	if text == "" {
		return nil, nil
	}
	requirements, err := labels.ParseToRequirements(text)
	if err != nil {
		return nil, fmt.Errorf("--selector %s: %w: write it as for kubectl, as in tier=gold,!temporary", text, err)
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
			return nil, fmt.Errorf("--selector %s: objects are not chosen by %q: use =, !=, in, notin, or that there is a label", text, r.Operator())
		}
		out.MatchExpressions = append(out.MatchExpressions, e)
	}
	return out, nil
}

// spec is the request as a plan says it.
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
	language, err := reference.New()
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
			return nil, fmt.Errorf("%s is given %d times, and a plan takes %d: choose by label with --selector", list.flag, len(list.from), maxObjects)
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

// speculative are the objects of files as a plan takes them: those of providers' kinds. The rest is
// told, because the plan takes it as it is in Atoll.
func (s *Session) speculative(objects []*unstructured.Unstructured) ([]runtime.RawExtension, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	var out []runtime.RawExtension
	var others []string
	for _, o := range objects {
		id := o.GetKind() + "/" + o.GetName()
		if !isProviders(o.GroupVersionKind().Group) {
			others = append(others, id)
			continue
		}
		if o.GetName() == "" {
			return nil, fmt.Errorf("something in the files of kind %s has no metadata.name: give it one", o.GetKind())
		}
		if o.GetNamespace() == "" {
			o.SetNamespace(s.Namespace)
		}
		if o.GetNamespace() != s.Namespace {
			return nil, fmt.Errorf("%s is of namespace %s, and the plan is of %s: plan one namespace at a time, with -n %s", id, o.GetNamespace(), s.Namespace, o.GetNamespace())
		}
		text, err := json.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		out = append(out, runtime.RawExtension{Raw: text})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing in the files is of a Provider's kind (group *.%s): there is %s", v1alpha1.ProvidersDomain, shortened(others))
	}
	if len(out) > maxObjects {
		return nil, fmt.Errorf("there are %d resources in the files, and a plan of files takes %d: `kubectl apply` them, which changes nothing by itself, and `%s`",
			len(out), maxObjects, s.command("plan"))
	}
	if len(others) > 0 {
		s.tell("Not of a Provider's kind, and taken as it is in Atoll: %s", shortened(others))
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

// MakePlan has a plan made. It does not wait for it.
func (s *Session) MakePlan(ctx context.Context, r *Request) (*v1alpha1.Plan, error) {
	spec, err := s.spec(r)
	if err != nil {
		return nil, err
	}
	name := r.Name
	if name == "" {
		name = "plan-"
	}
	p, err := create[v1alpha1.Plan](ctx, s, aPlan(), name, spec)
	if err != nil {
		return nil, s.explained(ctx, "make a plan", aPlan(), "", err)
	}
	return p, nil
}
