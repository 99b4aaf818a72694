package schema

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Validate validates arguments as far as the schema allows. It runs Config with a permissive
// Resolver, so the two cannot disagree.
func Validate(block *providerapi.Block, at *field.Path, arguments map[string]any, checks Checks) field.ErrorList {
	r := &reader{resolve: permissiveResolver{}, checks: checks}
	r.block(at, block, arguments)
	return r.errs
}

// permissiveResolver resolves everything to an unknown value, which is valid everywhere.
type permissiveResolver struct{}

func (permissiveResolver) Expression(*field.Path, string) (cty.Value, error) {
	return cty.DynamicVal, nil
}

func (permissiveResolver) Secret(*field.Path, SecretKeyRef) (cty.Value, error) {
	return cty.UnknownVal(cty.String), nil
}

// Warnings returns warnings about deprecated arguments, and about numbers and booleans that stand for
// strings.
func Warnings(block *providerapi.Block, at *field.Path, arguments map[string]any) []string {
	var warnings []string
	for i := range block.Attributes {
		a := &block.Attributes[i]
		if given, ok := arguments[a.Name]; ok && given != nil && a.Deprecated {
			warnings = append(warnings, deprecated(at.Child(a.Name)))
		}
		if text, converted := exactText(arguments[a.Name]); converted && a.Type == cty.String {
			warnings = append(warnings, fmt.Sprintf("%s is taken as the text %q: if you wrote something else, such as 0644 or on, which YAML converts, put it in quotes", at.Child(a.Name), text))
		}
	}
	for i := range block.Blocks {
		n := &block.Blocks[i]
		given, ok := arguments[n.Name]
		if !ok || given == nil {
			continue
		}
		if n.Block.Deprecated {
			warnings = append(warnings, deprecated(at.Child(n.Name)))
		}
		warnings = append(warnings, warningsWithin(n, at.Child(n.Name), given)...)
	}
	return warnings
}

func warningsWithin(n *providerapi.NestedBlock, at *field.Path, given any) []string {
	var warnings []string
	switch given := given.(type) {
	case []any:
		for i, item := range given {
			if object, ok := item.(map[string]any); ok {
				warnings = append(warnings, Warnings(&n.Block, at.Index(i), object)...)
			}
		}
	case map[string]any:
		if n.Nesting != providerapi.NestingMap {
			return Warnings(&n.Block, at, given)
		}
		for _, key := range sortedKeys(given) {
			if object, ok := given[key].(map[string]any); ok {
				warnings = append(warnings, Warnings(&n.Block, at.Key(key), object)...)
			}
		}
	}
	return warnings
}

func deprecated(at *field.Path) string {
	return fmt.Sprintf("%s is deprecated by the provider; see kubectl explain for its replacement", at)
}
