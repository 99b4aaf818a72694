package plans

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
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// asked is what a Plan asks for, in the engine's words. Problems are of what it names that is not there, or is
// wrong: then nothing is planned, because it would be something else.
func (d *desk) asked(p *v1alpha1.Plan) (infra.PlanOptions, []v1alpha1.Problem) {
	what := infra.PlanOptions{Namespace: p.Namespace, Refresh: p.Spec.Refresh, Mode: modeOf(&p.Spec), Parallelism: int(p.Spec.Parallelism), ApplyEnded: d.applyEnded(p.Namespace)}
	var problems []v1alpha1.Problem
	complain := func(field, format string, args ...any) {
		problems = append(problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if what.Mode == "" {
		complain("spec.mode", "there is no mode %q: write Normal, Destroy or RefreshOnly", p.Spec.Mode)
	}
	if p.Spec.Rollback != "" && what.Mode != plan.Normal {
		complain("spec.mode", "a rollback is planned in mode Normal: leave the mode out")
	}
	if p.Spec.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
		if err != nil {
			complain("spec.selector", "%v", err)
		}
		what.Selector = selector
	}
	if len(p.Name) > longestName {
		complain("metadata.name", "the name of a plan has at most %d letters: give it a shorter one", longestName)
	}
	what.Overrides = d.supposed(p, &problems)
	refs := func(field string, all []v1alpha1.ObjectReference) []reference.Ref {
		var out []reference.Ref
		for i, r := range all {
			ref, err := d.resolve(p.Namespace, r, what.Overrides)
			if err != nil {
				complain(fmt.Sprintf("spec.%s[%d]", field, i), "%v", err)
				continue
			}
			out = append(out, ref)
		}
		return out
	}
	what.Targets, what.Exclude, what.Replace = refs("targets", p.Spec.Targets), refs("exclude", p.Spec.Exclude), refs("replace", p.Spec.Replace)
	return what, problems
}

// resolve finds the resource or data source that is meant.
func (d *desk) resolve(namespace string, r v1alpha1.ObjectReference, supposed []*infra.Object) (reference.Ref, error) {
	groups := []string{r.Group}
	if r.Group == "" {
		groups = slices.Sorted(slices.Values(d.types.Groups()))
	}
	plural := infraschema.Plural(r.Kind)
	var found []reference.Ref
	var in []string
	for _, group := range groups {
		served, ok := d.types.ByPlural(group, plural)
		if !ok || served.Name.Kind != r.Kind {
			continue
		}
		ref := reference.Ref{Type: served.Type, Namespace: namespace, Name: r.Name}
		if served.Data {
			ref.Kind = reference.Data
		}
		found, in = append(found, ref), append(in, group)
	}
	switch {
	case len(found) == 0 && r.Group != "":
		return reference.Ref{}, fmt.Errorf("there is no kind %s in group %s: look at kubectl api-resources --api-group=%s, and whether the Provider is Served", r.Kind, r.Group, r.Group)
	case len(found) == 0:
		return reference.Ref{}, fmt.Errorf("no Provider has a kind %s: look at kubectl get providers", r.Kind)
	case len(found) > 1:
		return reference.Ref{}, fmt.Errorf("kind %s is in %s: say in group which one is meant", r.Kind, strings.Join(in, " and "))
	}
	ref := found[0]
	if d.world.Object(ref) == nil && d.world.State(ref) == nil && !slices.ContainsFunc(supposed, func(o *infra.Object) bool { return o.Ref == ref }) {
		return reference.Ref{}, fmt.Errorf("there is no %s %s in namespace %s, and nothing that was made from one", r.Kind, r.Name, namespace)
	}
	return ref, nil
}

// supposed are the objects that the plan takes for written, each checked as the API would.
func (d *desk) supposed(p *v1alpha1.Plan, problems *[]v1alpha1.Problem) []*infra.Object {
	var out []*infra.Object
	seen := map[reference.Ref]bool{}
	for i, raw := range p.Spec.Objects {
		at := fmt.Sprintf("spec.objects[%d]", i)
		complain := func(field, format string, args ...any) {
			*problems = append(*problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: at + field, Message: fmt.Sprintf(format, args...)})
		}
		o, served, field, err := d.suppose(p.Namespace, raw.Raw)
		if err != nil {
			complain(field, "%v", err)
			continue
		}
		if seen[o.Ref] {
			complain(".metadata.name", "%s is there twice", o.Ref.Name)
			continue
		}
		seen[o.Ref] = true
		var spec map[string]any
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			complain(".spec", "it has to be an object")
			continue
		}
		// Details alone: what was written may be what should not be repeated.
		errs, _ := served.Validate(spec, infraschema.Checks{Partial: o.ImportID != ""})
		for _, e := range errs {
			complain("."+e.Field, "%s: %s", e.Type, e.Detail)
		}
		if _, err := d.language.Spec(spec, p.Namespace); err != nil {
			complain(".spec", "%v", err)
		}
		out = append(out, o)
	}
	return out
}

// suppose reads one of them. The field is that which an error is about.
func (d *desk) suppose(namespace string, raw []byte) (o *infra.Object, served *infra.ServedKind, field string, err error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, nil, "", errors.New("it is not an object")
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil || gv.Version != v1alpha1.ProvidersVersion || !strings.HasSuffix(gv.Group, "."+v1alpha1.ProvidersDomain) {
		return nil, nil, ".apiVersion", fmt.Errorf("%q is not that of a provider's kinds: write PROVIDER.%s/%s", head.APIVersion, v1alpha1.ProvidersDomain, v1alpha1.ProvidersVersion)
	}
	o, _, err = readObject(gv.Group, "", raw, 0)
	if err != nil {
		return nil, nil, "", errors.New("its metadata or spec cannot be read: they have to be as those of any object")
	}
	plural := infraschema.Plural(o.Kind)
	served, ok := d.types.ByPlural(gv.Group, plural)
	if !ok || served.Name.Kind != o.Kind {
		return nil, nil, ".kind", fmt.Errorf("there is no kind %s in group %s: look at kubectl api-resources --api-group=%s, and whether the Provider is Served", o.Kind, gv.Group, gv.Group)
	}
	switch {
	case o.Ref.Name == "":
		return nil, nil, ".metadata.name", errors.New("a name is needed")
	case o.Ref.Namespace != "" && o.Ref.Namespace != namespace:
		return nil, nil, ".metadata.namespace", fmt.Errorf("a plan of namespace %s is of objects of that namespace", namespace)
	}
	o.Plural, o.Ref.Namespace, o.Ref.Type = plural, namespace, served.Type
	if served.Data {
		o.Ref.Kind = reference.Data
	}
	o.UID, o.ResourceVersion, o.Generation, o.Deleting, o.HasFinalizer = "", "", 1, false, false
	if was := d.world.Object(o.Ref); was != nil {
		o.UID, o.Generation, o.Deleting, o.HasFinalizer = was.UID, was.Generation+1, was.Deleting, was.HasFinalizer
	}
	return o, served, "", nil
}

// modeOf is the engine's word for a plan's mode, or none if there is no such mode.
func modeOf(spec *v1alpha1.PlanSpec) plan.Mode {
	switch spec.Mode {
	case v1alpha1.PlanNormal, "":
		return plan.Normal
	case v1alpha1.PlanDestroy:
		return plan.Destroy
	case v1alpha1.PlanRefreshOnly:
		return plan.RefreshOnly
	}
	return ""
}

// applyEnded tells of the applies of a namespace whether they have ended. One that is not there any more has.
func (d *desk) applyEnded(namespace string) func(uid string) bool {
	return func(uid string) bool {
		return !slices.ContainsFunc(inNamespace[v1alpha1.Apply](d.caches.applies, namespace), func(a *v1alpha1.Apply) bool {
			return string(a.UID) == uid && !ended(a)
		})
	}
}
