// Package problems words the problems and warnings that plans and applies report to users.
//
// It computes only: it masks nothing itself, and its callers pass text without secrets or a mask.
package problems

import (
	"strings"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// maxProblem limits the length of a Problem's message: one status can have many.
const maxProblem = 1500

func Limit(text string) string {
	if len(text) <= maxProblem {
		return text
	}
	return strings.ToValidUTF8(text[:maxProblem], "") + "…"
}

// Text returns the text of a diagnostic.
func Text(d providerapi.Diagnostic) string {
	if d.Detail == "" {
		return d.Summary
	}
	return d.Summary + ": " + d.Detail
}

// Field formats a path as kubectl does. Elements of a set have no names, so that the path ends
// at the set.
func Field(path cty.Path) string {
	if len(path) == 0 {
		return ""
	}
	at := field.NewPath("spec")
	for _, step := range path {
		switch step := step.(type) {
		case cty.GetAttrStep:
			at = at.Child(step.Name)
		case cty.IndexStep:
			key, _ := step.Key.Unmark()
			switch {
			case !key.IsKnown() || key.IsNull():
				return at.String()
			case key.Type() == cty.String:
				at = at.Key(key.AsString())
			case key.Type() == cty.Number:
				n, _ := key.AsBigFloat().Int64()
				at = at.Index(int(n))
			default:
				return at.String()
			}
		}
	}
	return at.String()
}
