package plancontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/feed"
	"github.com/atoll-dev/atoll/infra/planner"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// requests translates Plans into requests to the engine.
type requests struct {
	*session
	types    kindNames
	language *expr.Language
}

// kindNames is the part of feed.Types that is used here.
type kindNames interface {
	Groups() []string
	ByPlural(group, plural string) (*infra.ServedKind, bool)
}

// of translates a Plan into the engine's request. Problems name invalid fields and references.
// With any problem nothing is planned, because the result would be a different plan.
func (r *requests) of(p *v1alpha1.Plan) (planner.Options, []v1alpha1.Problem) {
	req := planner.Options{Namespace: p.Namespace, Refresh: p.Spec.Refresh, Mode: modeOf(&p.Spec), Parallelism: int(p.Spec.Parallelism), ApplyEnded: r.applyEnded(p.Namespace)}
	var problems []v1alpha1.Problem
	addProblem := func(field, format string, args ...any) {
		problems = append(problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if req.Mode == "" {
		addProblem("spec.mode", "unknown mode %q: use Normal, Destroy or RefreshOnly", p.Spec.Mode)
	}
	if p.Spec.Rollback != "" && req.Mode != change.Normal {
		addProblem("spec.mode", "a rollback requires mode Normal: leave the mode out")
	}
	if p.Spec.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
		if err != nil {
			addProblem("spec.selector", "%v", err)
		}
		req.Selector = selector
	}
	if len(p.Name) > apistore.MaxPlanNameLength {
		addProblem("metadata.name", "the name exceeds %d characters: choose a shorter one", apistore.MaxPlanNameLength)
	}
	req.Overrides = r.speculativeObjects(p, &problems)
	refs := func(field string, all []v1alpha1.ObjectReference) []expr.Ref {
		var out []expr.Ref
		for i, target := range all {
			ref, err := r.resolve(p.Namespace, target, req.Overrides)
			if err != nil {
				addProblem(fmt.Sprintf("spec.%s[%d]", field, i), "%v", err)
				continue
			}
			out = append(out, ref)
		}
		return out
	}
	req.Targets, req.Exclude, req.Replace = refs("targets", p.Spec.Targets), refs("exclude", p.Spec.Exclude), refs("replace", p.Spec.Replace)
	return req, problems
}

// resolve returns the resource or data source that a reference means.
func (r *requests) resolve(namespace string, target v1alpha1.ObjectReference, speculative []*infra.Object) (expr.Ref, error) {
	groups := []string{target.Group}
	if target.Group == "" {
		groups = slices.Sorted(slices.Values(r.types.Groups()))
	}
	plural := infraschema.Plural(target.Kind)
	var found []expr.Ref
	var in []string
	for _, group := range groups {
		served, ok := r.types.ByPlural(group, plural)
		if !ok || served.Name.Kind != target.Kind {
			continue
		}
		ref := expr.Ref{Type: served.Type, Namespace: namespace, Name: target.Name}
		if served.Data {
			ref.Kind = expr.Data
		}
		found, in = append(found, ref), append(in, group)
	}
	switch {
	case len(found) == 0 && target.Group != "":
		return expr.Ref{}, fmt.Errorf("kind %s not found in group %s: check kubectl api-resources --api-group=%s and the Provider's condition Served", target.Kind, target.Group, target.Group)
	case len(found) == 0:
		return expr.Ref{}, fmt.Errorf("no Provider serves kind %s: check kubectl get providers", target.Kind)
	case len(found) > 1:
		return expr.Ref{}, fmt.Errorf("kind %s is ambiguous, served by %s: set group", target.Kind, strings.Join(in, " and "))
	}
	ref := found[0]
	if r.inventory.Object(ref) == nil && r.inventory.State(ref) == nil && !slices.ContainsFunc(speculative, func(o *infra.Object) bool { return o.Ref == ref }) {
		return expr.Ref{}, fmt.Errorf("%s %s not found in namespace %s: neither an object nor a state exists", target.Kind, target.Name, namespace)
	}
	return ref, nil
}

// speculativeObjects returns the objects that the plan supposes to exist, each validated as the API would.
func (r *requests) speculativeObjects(p *v1alpha1.Plan, problems *[]v1alpha1.Problem) []*infra.Object {
	var out []*infra.Object
	seen := map[expr.Ref]bool{}
	for i, raw := range p.Spec.Objects {
		at := fmt.Sprintf("spec.objects[%d]", i)
		addProblem := func(field, format string, args ...any) {
			*problems = append(*problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: at + field, Message: fmt.Sprintf(format, args...)})
		}
		o, served, field, err := r.speculativeObject(p.Namespace, raw.Raw)
		if err != nil {
			addProblem(field, "%v", err)
			continue
		}
		if seen[o.Ref] {
			addProblem(".metadata.name", "%s is listed twice", o.Ref.Name)
			continue
		}
		seen[o.Ref] = true
		var spec map[string]any
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			addProblem(".spec", "must be an object")
			continue
		}
		// Report details without the value: it may be sensitive.
		errs, _ := served.Validate(spec, infraschema.Checks{Partial: o.ImportID != ""})
		for _, e := range errs {
			addProblem("."+e.Field, "%s: %s", e.Type, e.Detail)
		}
		if _, err := r.language.Spec(spec, p.Namespace); err != nil {
			addProblem(".spec", "%v", err)
		}
		out = append(out, o)
	}
	return out
}

// speculativeObject decodes one of them. field names the field that an error is about.
func (r *requests) speculativeObject(namespace string, raw []byte) (o *infra.Object, served *infra.ServedKind, field string, err error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, nil, "", errors.New("must be a JSON object")
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil || gv.Version != v1alpha1.ProvidersVersion || !strings.HasSuffix(gv.Group, "."+v1alpha1.ProvidersDomain) {
		return nil, nil, ".apiVersion", fmt.Errorf("%q is not a provider's API version: use PROVIDER.%s/%s", head.APIVersion, v1alpha1.ProvidersDomain, v1alpha1.ProvidersVersion)
	}
	o, _, err = feed.DecodeObject(gv.Group, "", raw, 0)
	if err != nil {
		return nil, nil, "", errors.New("invalid metadata or spec")
	}
	plural := infraschema.Plural(o.Kind)
	served, ok := r.types.ByPlural(gv.Group, plural)
	if !ok || served.Name.Kind != o.Kind {
		return nil, nil, ".kind", fmt.Errorf("kind %s not found in group %s: check kubectl api-resources --api-group=%s and the Provider's condition Served", o.Kind, gv.Group, gv.Group)
	}
	switch {
	case o.Ref.Name == "":
		return nil, nil, ".metadata.name", errors.New("is required")
	case o.Ref.Namespace != "" && o.Ref.Namespace != namespace:
		return nil, nil, ".metadata.namespace", fmt.Errorf("must be %s, the namespace of the plan", namespace)
	}
	o.Plural, o.Ref.Namespace, o.Ref.Type = plural, namespace, served.Type
	if served.Data {
		o.Ref.Kind = expr.Data
	}
	o.UID, o.ResourceVersion, o.Generation, o.Deleting, o.HasFinalizer = "", "", 1, false, false
	o.Author, o.ChangedBy = "", "" // the plan's author wrote it, whatever its annotations say
	if existing := r.inventory.Object(o.Ref); existing != nil {
		o.UID, o.Generation, o.Deleting, o.HasFinalizer = existing.UID, existing.Generation+1, existing.Deleting, existing.HasFinalizer
	}
	return o, served, "", nil
}

// modeOf returns the engine's mode, or the empty string if a plan's mode is unknown.
func modeOf(spec *v1alpha1.PlanSpec) change.Mode {
	switch spec.Mode {
	case v1alpha1.PlanNormal, "":
		return change.Normal
	case v1alpha1.PlanDestroy:
		return change.Destroy
	case v1alpha1.PlanRefreshOnly:
		return change.RefreshOnly
	}
	return ""
}

// applyEnded returns a function that reports whether an Apply of a namespace has ended. A deleted one has.
func (r *requests) applyEnded(namespace string) func(uid string) bool {
	return func(uid string) bool {
		return !slices.ContainsFunc(r.caches.applies.In(namespace), func(a *v1alpha1.Apply) bool {
			return string(a.UID) == uid && !ended(a)
		})
	}
}
