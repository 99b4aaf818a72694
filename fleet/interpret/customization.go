package interpret

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Customization is a parsed ResourceInterpretation, which can be applied to the interpretation of
// its kind.
type Customization struct {
	Name   string
	Target schema.GroupKind

	uid                                types.UID
	generation                         int64
	webhook                            *v1alpha1.InterpretationWebhook
	mode                               Mode
	scale                              *Scale
	template                           []string
	retain                             []path
	count, labels, components          *expression
	needs, follows                     *expression
	health, finished                   *expression
	fields                             []fieldRule
	retainText, healthText, statusText string
}

// A fieldRule specifies how one field of the status is aggregated.
type fieldRule struct {
	path       path
	merge      string
	expression *expression
}

// ParseCustomization parses a ResourceInterpretation. The error lists all mistakes, each with its
// field, and for expressions with line and column.
func ParseCustomization(in *v1alpha1.ResourceInterpretation) (Customization, error) {
	c, err := newCompiler()
	if err != nil {
		return Customization{}, err
	}
	spec := in.Spec
	l := Customization{Name: in.Name, Target: spec.Target.GroupKind(), mode: Mode(spec.Mode), uid: in.UID, generation: in.Generation, webhook: spec.Webhook}
	if _, err := schema.ParseGroupVersion(spec.Target.APIVersion); err != nil || spec.Target.APIVersion == "" || spec.Target.Kind == "" {
		c.fail("spec.target", fmt.Errorf("invalid apiVersion %q, kind %q: specify a kind such as apiVersion apps/v1, kind Deployment", spec.Target.APIVersion, spec.Target.Kind))
	}
	if !slices.Contains([]Mode{"", Duplicated, Divided, Single}, l.mode) {
		c.fail("spec.mode", fmt.Errorf("unsupported value %q: must be Duplicated, Divided or Single", spec.Mode))
	}
	if spec.Replicas != nil {
		l.scale = &Scale{Replicas: c.plainPath("spec.replicas.path", spec.Replicas.Path)}
		l.count = c.compile(c.plain, "spec.replicas.count", spec.Replicas.Count, anInt...)
	} else if builtIn, _ := Find(l.Target); l.mode == Divided && !builtIn.Divided && !asks(spec.Webhook, v1alpha1.InterpretReplica) {
		c.fail("spec.mode", errors.New("mode Divided requires spec.replicas: set its path to the field with the count"))
	}
	if spec.Pods != nil {
		if spec.Pods.Template != "" {
			l.template = c.plainPath("spec.pods.template", spec.Pods.Template)
		}
		l.labels = c.compile(c.plain, "spec.pods.labels", spec.Pods.Labels, aMap...)
	}
	l.components = c.compile(c.plain, "spec.components", spec.Components, aList...)
	if spec.Components != "" && (spec.Replicas != nil || l.mode == Divided) {
		c.fail("spec.components", errors.New("an object with components cannot be divided: remove spec.replicas, and set mode Single or Duplicated"))
	}
	for i, text := range spec.Retain {
		l.retain = append(l.retain, c.path(fmt.Sprintf("spec.retain[%d]", i), text))
	}
	c.checkWebhook(spec)
	l.needs = c.compile(c.plain, "spec.needs", spec.Needs, aList...)
	l.follows = c.compile(c.plain, "spec.follows", spec.Follows, aList...)
	l.health = c.compile(c.plain, "spec.health", spec.Health, aVerdict...)
	l.finished = c.compile(c.plain, "spec.finished", spec.Finished, aBool...)
	l.fields = c.fieldRules(spec.Status)
	l.describe(spec)
	if err := c.err(); err != nil {
		return Customization{}, fmt.Errorf("ResourceInterpretation %s: %w", in.Name, err)
	}
	return l, nil
}

func (c *compiler) fieldRules(in []v1alpha1.InterpretedField) []fieldRule {
	var out []fieldRule
	for i, f := range in {
		name := fmt.Sprintf("spec.status[%d]", i)
		rule := fieldRule{path: c.plainPath(name+".field", "."+strings.TrimPrefix(f.Field, ".")), merge: f.Merge}
		rule.expression = c.compile(c.overMembers, name+".expression", f.Expression)
		switch {
		case (f.Merge == "") == (strings.TrimSpace(f.Expression) == ""):
			c.fail(name, errors.New("set either merge or expression"))
		case f.Merge != "" && mergeFunc(f.Merge) == nil:
			c.fail(name+".merge", fmt.Errorf("unsupported value %q: must be Sum, Min, Max, First, Concat or Agreed", f.Merge))
		}
		out = append(out, rule)
	}
	return out
}

func (c *compiler) path(field, text string) path {
	p, err := parsePath(text)
	if err != nil {
		c.fail(field, fmt.Errorf("%q: %w", text, err))
	}
	return p
}

// plainPath parses a path to a single field.
func (c *compiler) plainPath(field, text string) path {
	p := c.path(field, text)
	if !p.plain() {
		c.fail(field, fmt.Errorf("%q: [*] selects many fields, but one field is required", text))
	}
	return p
}

// describe sets the descriptions for the list of kinds.
func (c *Customization) describe(spec v1alpha1.ResourceInterpretationSpec) {
	c.retainText = strings.Join(spec.Retain, ", ")
	if spec.Health != "" {
		c.healthText = "by its ResourceInterpretation"
	}
	var fields []string
	for _, f := range spec.Status {
		fields = append(fields, f.Field+": "+cmp.Or(f.Merge, "by expression"))
	}
	c.statusText = strings.Join(fields, ", ")
}

// Customizations parses all ResourceInterpretations. If several target one kind, the oldest is
// used. A ResourceInterpretation that is not in use has an error, by name, and no part of it is
// used.
func Customizations(all []*v1alpha1.ResourceInterpretation) ([]Customization, map[string]error) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *v1alpha1.ResourceInterpretation) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var out []Customization
	wrong := map[string]error{}
	for _, in := range sorted {
		gk := in.Spec.Target.GroupKind()
		if i := slices.IndexFunc(out, func(l Customization) bool { return l.Target == gk }); i >= 0 {
			wrong[in.Name] = &DuplicateCustomizationError{Name: in.Name, Target: gk, Older: out[i].Name}
			continue
		}
		customization, err := ParseCustomization(in)
		if err != nil {
			wrong[in.Name] = err
			continue
		}
		out = append(out, customization)
	}
	return out, wrong
}

// DuplicateCustomizationError is returned when an older ResourceInterpretation targets the same
// kind.
type DuplicateCustomizationError struct {
	Name   string
	Target schema.GroupKind
	Older  string
}

func (e *DuplicateCustomizationError) Error() string {
	return fmt.Sprintf("ResourceInterpretation %s: the older ResourceInterpretation %s already targets %s: delete one of them, or merge them", e.Name, e.Older, e.Target)
}
