package host

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// fields returns a copy of an object's attributes, nil for null.
func fields(v tftypes.Value) map[string]tftypes.Value {
	var all map[string]tftypes.Value
	if v.IsNull() || !v.IsKnown() || v.As(&all) != nil {
		return nil
	}
	return maps.Clone(all)
}

// elements returns those of a list, set or tuple; none for null.
func elements(v tftypes.Value) []tftypes.Value {
	var all []tftypes.Value
	if v.IsNull() || !v.IsKnown() || v.As(&all) != nil {
		return nil
	}
	return all
}

// withBlocks replaces null blocks by empty collections.
func withBlocks(block *tfprotov6.SchemaBlock, v tftypes.Value) tftypes.Value {
	all := fields(v)
	if all == nil {
		return v
	}
	for _, nested := range block.BlockTypes {
		one := func(v tftypes.Value) tftypes.Value { return withBlocks(nested.Block, v) }
		all[nested.TypeName] = each(all[nested.TypeName], one)
	}
	return tftypes.NewValue(v.Type(), all)
}

// each applies a function to each contained object; null collections become empty.
func each(v tftypes.Value, one func(tftypes.Value) tftypes.Value) tftypes.Value {
	switch v.Type().(type) {
	case tftypes.List, tftypes.Set:
		all := []tftypes.Value{}
		for _, element := range elements(v) {
			all = append(all, one(element))
		}
		return tftypes.NewValue(v.Type(), all)
	case tftypes.Map:
		all := map[string]tftypes.Value{}
		for key, element := range fields(v) {
			all[key] = one(element)
		}
		return tftypes.NewValue(v.Type(), all)
	}
	return one(v)
}

// proposed merges the configuration with previously computed values.
func proposed(block *tfprotov6.SchemaBlock, prior, config tftypes.Value) tftypes.Value {
	next, was := fields(config), fields(prior)
	if next == nil {
		return config
	}
	proposeAttributes(block.Attributes, next, was)
	for _, nested := range block.BlockTypes {
		next[nested.TypeName] = pair(was[nested.TypeName], next[nested.TypeName], func(prior, config tftypes.Value) tftypes.Value {
			return proposed(nested.Block, prior, config)
		})
	}
	return tftypes.NewValue(config.Type(), next)
}

func proposeAttributes(attributes []*tfprotov6.SchemaAttribute, next, was map[string]tftypes.Value) {
	for _, a := range attributes {
		written := next[a.Name]
		switch before, found := was[a.Name]; {
		case a.Computed && written.IsNull() && found:
			next[a.Name] = before
		case a.NestedType != nil && !written.IsNull() && written.IsKnown():
			next[a.Name] = pair(before, written, func(prior, config tftypes.Value) tftypes.Value {
				within := fields(config)
				if within == nil {
					return config
				}
				proposeAttributes(a.NestedType.Attributes, within, fields(prior))
				return tftypes.NewValue(config.Type(), within)
			})
		}
	}
}

// pair merges each object with its prior one: by index in a list, by key in a map. Elements of sets
// have no identity and are treated as new.
func pair(prior, config tftypes.Value, merge func(prior, config tftypes.Value) tftypes.Value) tftypes.Value {
	switch typ := config.Type().(type) {
	case tftypes.List, tftypes.Set:
		if !config.IsKnown() || config.IsNull() {
			return config
		}
		was, all := elements(prior), []tftypes.Value{}
		_, ordered := typ.(tftypes.List)
		for i, element := range elements(config) {
			before := tftypes.Value{}
			if ordered && i < len(was) {
				before = was[i]
			}
			all = append(all, merge(before, element))
		}
		return tftypes.NewValue(typ, all)
	case tftypes.Map:
		if !config.IsKnown() || config.IsNull() {
			return config
		}
		was, all := fields(prior), map[string]tftypes.Value{}
		for key, element := range fields(config) {
			all[key] = merge(was[key], element)
		}
		return tftypes.NewValue(typ, all)
	}
	return merge(prior, config)
}

// withoutWriteOnly sets write-only attributes to null, because they are never stored.
func withoutWriteOnly(block *tfprotov6.SchemaBlock, v tftypes.Value) tftypes.Value {
	all := fields(v)
	if all == nil {
		return v
	}
	for _, a := range block.Attributes {
		if a.WriteOnly {
			all[a.Name] = tftypes.NewValue(a.Type, nil)
		}
	}
	return tftypes.NewValue(v.Type(), all)
}

// broken lists deviations from the plan, and values that are still unknown.
func broken(planned, got tftypes.Value) []string {
	var all []string
	if !got.IsFullyKnown() {
		all = append(all, "broken: unknown after it was applied")
	}
	differences, err := planned.Diff(got)
	if err != nil {
		return append(all, "broken: "+err.Error())
	}
	for _, d := range differences {
		if d.Value1 != nil && isPlanned(planned, d.Path) {
			all = append(all, fmt.Sprintf("broken: %s was planned as %s and is %s", d.Path, Show(*d.Value1), showPointer(d.Value2)))
		}
	}
	return all
}

// isPlanned reports whether the value at the path was wholly known.
func isPlanned(planned tftypes.Value, path *tftypes.AttributePath) bool {
	at, _, err := tftypes.WalkAttributePath(planned, path)
	if err != nil {
		return false // below something unknown
	}
	v, ok := at.(tftypes.Value)
	return ok && v.IsFullyKnown()
}

func showPointer(v *tftypes.Value) string {
	if v == nil {
		return "gone"
	}
	return Show(*v)
}

// Show formats a value as JSON, sorted; unknown values are ?.
func Show(v tftypes.Value) string {
	switch {
	case v.Type() == nil || v.IsNull():
		return "null"
	case !v.IsKnown():
		return "?"
	}
	switch v.Type().(type) {
	case tftypes.List, tftypes.Set, tftypes.Tuple:
		var all []string
		for _, element := range elements(v) {
			all = append(all, Show(element))
		}
		if v.Type().Is(tftypes.Set{}) {
			slices.Sort(all)
		}
		return "[" + strings.Join(all, ",") + "]"
	case tftypes.Map, tftypes.Object:
		within := fields(v)
		var all []string
		for _, name := range slices.Sorted(maps.Keys(within)) {
			all = append(all, strconv.Quote(name)+":"+Show(within[name]))
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	return showPrimitive(v)
}

func showPrimitive(v tftypes.Value) string {
	var text string
	var truth bool
	var number big.Float
	switch {
	case v.As(&text) == nil:
		encoded, _ := json.Marshal(text) // strings never fail
		return string(encoded)
	case v.As(&truth) == nil:
		return strconv.FormatBool(truth)
	case v.As(&number) == nil:
		return number.Text('g', -1)
	}
	return v.String()
}
