package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// SpecInfo is the part of a spec that is needed before it is evaluated.
type SpecInfo struct {
	// CreateBeforeDestroy is lifecycle.create_before_destroy.
	CreateBeforeDestroy bool
	// rare holds what few objects have.
	rare *rareSpecInfo
}

type rareSpecInfo struct {
	// triggers is lifecycle.replace_triggered_by.
	triggers []expr.Reference
	// movedFrom is spec.movedFrom.
	movedFrom *expr.Ref
	// errors are the reasons why the spec cannot be parsed.
	errors []SpecError
}

// SpecError is an error in one field.
type SpecError struct{ Field, Text string }

// Triggers returns lifecycle.replace_triggered_by.
func (r *SpecInfo) Triggers() []expr.Reference {
	if r.rare == nil {
		return nil
	}
	return r.rare.triggers
}

// MovedFrom returns the resource that spec.movedFrom names, or nil.
func (r *SpecInfo) MovedFrom() *expr.Ref {
	if r.rare == nil {
		return nil
	}
	return r.rare.movedFrom
}

// Errors returns the reasons why the spec cannot be parsed.
func (r *SpecInfo) Errors() []SpecError {
	if r.rare == nil {
		return nil
	}
	return r.rare.errors
}

// parseSpec parses a spec and returns the resources and data sources that it refers to, each once.
// The parsed spec is not kept: it takes ten times the memory of its text.
func parseSpec(language *expr.Language, o *infra.Object) (SpecInfo, []expr.Ref) {
	var spec map[string]any
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return SpecInfo{rare: &rareSpecInfo{errors: []SpecError{{"spec", "must be an object: " + err.Error()}}}}, nil
	}
	parsed, err := language.Spec(spec, o.Ref.Namespace)
	if err != nil {
		return SpecInfo{rare: &rareSpecInfo{errors: specErrorsOf(err)}}, nil
	}
	var out SpecInfo
	if len(parsed.ReplaceTriggeredBy) > 0 {
		out.rare = &rareSpecInfo{triggers: parsed.ReplaceTriggeredBy}
	}
	if text, ok := spec["movedFrom"].(string); ok && text != "" && o.Ref.Kind == expr.Resource {
		from, err := movedFrom(language, text, o.Ref)
		if out.rare == nil {
			out.rare = &rareSpecInfo{}
		}
		if err != nil {
			out.rare.errors = append(out.rare.errors, SpecError{"spec.movedFrom", err.Error()})
		}
		out.rare.movedFrom = from
	}
	if lifecycle, ok := spec["lifecycle"].(map[string]any); ok {
		out.CreateBeforeDestroy, _ = lifecycle["create_before_destroy"].(bool)
	}
	for i, dependency := range slices.Concat(parsed.DependsOn, parsed.ReplaceTriggeredBy) {
		if dependency.Kind != expr.Kubernetes {
			continue
		}
		field := "spec.depends_on"
		if i >= len(parsed.DependsOn) {
			field = "spec.lifecycle.replace_triggered_by"
		}
		if out.rare == nil {
			out.rare = &rareSpecInfo{}
		}
		out.rare.errors = append(out.rare.errors, SpecError{field, fmt.Sprintf("%s is not a resource or data source, so there is no change to wait for: remove it", dependency.Ref)})
	}
	var refs []expr.Ref
	seen := map[expr.Ref]bool{}
	for _, used := range parsed.References() {
		if used.Kind != expr.Kubernetes && !seen[used.Ref] {
			seen[used.Ref] = true
			refs = append(refs, used.Ref)
		}
	}
	return out, refs
}

// movedFrom returns the resource that spec.movedFrom of an object names: NAME or NAMESPACE/NAME of an
// object of the same type, or a reference.
func movedFrom(language *expr.Language, text string, of expr.Ref) (*expr.Ref, error) {
	from := expr.Ref{Kind: expr.Resource, Type: of.Type, Namespace: of.Namespace, Name: text}
	if namespace, name, is := strings.Cut(text, "/"); is && len(validation.IsDNS1123Label(namespace)) == 0 {
		from.Namespace, from.Name = namespace, name
	}
	if len(validation.IsDNS1123Subdomain(from.Name)) > 0 {
		parsed, err := language.Reference(text, of.Namespace)
		var refError *expr.Error
		switch {
		case errors.As(err, &refError):
			return nil, withoutPath(refError)
		case err != nil:
			return nil, err
		case parsed.Kind != expr.Resource || len(parsed.Path) > 0:
			return nil, fmt.Errorf(`%q is not a resource: write NAME, NAMESPACE/NAME, or TYPE["name"] for another type`, text)
		}
		from = parsed.Ref
	}
	if from == of {
		return nil, errors.New("names the object itself: name the object that had the resource before, or remove it")
	}
	return &from, nil
}

// specErrorsOf splits an error of the expression language by field.
func specErrorsOf(err error) []SpecError {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []SpecError
		for _, inner := range joined.Unwrap() {
			out = append(out, specErrorsOf(inner)...)
		}
		return out
	}
	var langErr *expr.Error
	if errors.As(err, &langErr) {
		return []SpecError{{langErr.Path, withoutPath(langErr).Error()}}
	}
	return []SpecError{{"spec", err.Error()}}
}

// withoutPath returns the error without its path, for messages that show the field separately.
func withoutPath(err *expr.Error) *expr.Error {
	out := *err
	out.Path = ""
	return &out
}
