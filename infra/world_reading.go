package infra

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/infra/reference"
)

// reading is what of a spec has to be known before anything is evaluated.
type reading struct {
	// first is lifecycle.create_before_destroy.
	first bool
	// rare is what few objects have.
	rare *rareReading
}

type rareReading struct {
	// triggers is lifecycle.replace_triggered_by.
	triggers []reference.Reference
	// flaws are why it cannot be read.
	flaws []flaw
}

// flaw is what is wrong with a field.
type flaw struct{ field, text string }

func (r *reading) triggers() []reference.Reference {
	if r.rare == nil {
		return nil
	}
	return r.rare.triggers
}

func (r *reading) flaws() []flaw {
	if r.rare == nil {
		return nil
	}
	return r.rare.flaws
}

// readSpec reads a spec, and gives the resources and data sources that it refers to, each once. Nothing is kept
// of the spec as it was parsed: it takes ten times the memory of its text.
func readSpec(language *reference.Language, o *Object) (reading, []reference.Ref) {
	var spec map[string]any
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return reading{rare: &rareReading{flaws: []flaw{{"spec", "is not an object: " + err.Error()}}}}, nil
	}
	found, err := language.Spec(spec, o.Ref.Namespace)
	if err != nil {
		return reading{rare: &rareReading{flaws: flawsOf(err)}}, nil
	}
	var out reading
	if len(found.ReplaceTriggeredBy) > 0 {
		out.rare = &rareReading{triggers: found.ReplaceTriggeredBy}
	}
	if lifecycle, is := spec["lifecycle"].(map[string]any); is {
		out.first, _ = lifecycle["create_before_destroy"].(bool)
	}
	for i, one := range slices.Concat(found.DependsOn, found.ReplaceTriggeredBy) {
		if one.Kind != reference.Kubernetes {
			continue
		}
		field := "spec.depends_on"
		if i >= len(found.DependsOn) {
			field = "spec.lifecycle.replace_triggered_by"
		}
		if out.rare == nil {
			out.rare = &rareReading{}
		}
		out.rare.flaws = append(out.rare.flaws, flaw{field, fmt.Sprintf("%s is no resource or data source, and there is no change of it to wait for: leave it out", one.Ref)})
	}
	var refs []reference.Ref
	seen := map[reference.Ref]bool{}
	for _, used := range found.References() {
		if used.Kind != reference.Kubernetes && !seen[used.Ref] {
			seen[used.Ref] = true
			refs = append(refs, used.Ref)
		}
	}
	return out, refs
}

// flawsOf takes apart what the language says.
func flawsOf(err error) []flaw {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var out []flaw
		for _, one := range joined.Unwrap() {
			out = append(out, flawsOf(one)...)
		}
		return out
	}
	var said *reference.Error
	if errors.As(err, &said) {
		return []flaw{{said.Path, withoutPath(said).Error()}}
	}
	return []flaw{{"spec", err.Error()}}
}

// withoutPath is the same complaint for whoever shows the field beside it.
func withoutPath(said *reference.Error) *reference.Error {
	out := *said
	out.Path = ""
	return &out
}
