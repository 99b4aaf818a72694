package interpret

import (
	"cmp"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

type aggregator = func(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error)

// aggregateFields applies the rules for single fields to the result of another aggregator: the
// kind's own, or the generic one.
func (c Customization) aggregateFields(otherwise aggregator) aggregator {
	if otherwise == nil {
		otherwise = aggregateGeneric
	}
	return func(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
		out, err := otherwise(k, obj, members)
		if err != nil {
			return nil, err
		}
		for _, rule := range c.fields {
			value, err := rule.value(obj, members)
			if err != nil {
				return nil, err
			}
			if value == nil {
				unstructured.RemoveNestedField(out, rule.path...)
				continue
			}
			setNested(out, value, rule.path...)
		}
		return out, nil
	}
}

// value returns the field's value; nil omits the field.
func (r fieldRule) value(obj *unstructured.Unstructured, members []MemberStatus) (any, error) {
	if r.expression != nil {
		return r.expression.eval(map[string]any{varSelf: obj.Object, varMembers: asVariables(members)})
	}
	var values []any
	for _, m := range members {
		if value, found, _ := unstructured.NestedFieldNoCopy(m.Status, r.path...); found && value != nil {
			values = append(values, runtime.DeepCopyJSONValue(value))
		}
	}
	if len(values) == 0 {
		return nil, nil
	}
	value, err := mergeFunc(r.merge)(values, len(members))
	if err != nil {
		return nil, fmt.Errorf("status field %v: %s: %w", r.path, r.merge, err)
	}
	return value, nil
}

// asVariables returns the members as expressions see them.
func asVariables(members []MemberStatus) []any {
	out := make([]any, len(members))
	for i, m := range members {
		status := m.Status
		if status == nil {
			status = map[string]any{}
		}
		var replicas any
		if m.Replicas != nil {
			replicas = int64(*m.Replicas)
		}
		out[i] = map[string]any{"cluster": m.Cluster, "replicas": replicas, "current": m.Current, "stale": m.Stale != "", "status": status}
	}
	return out
}

// mergeFunc returns the function that merges the values of several clusters. There is at least one
// value, and of is the number of clusters.
func mergeFunc(name string) func(values []any, of int) (any, error) {
	switch name {
	case "Sum":
		return mergeSum
	case "Min":
		return func(values []any, _ int) (any, error) { return extreme(values, func(c int) bool { return c < 0 }) }
	case "Max":
		return func(values []any, _ int) (any, error) { return extreme(values, func(c int) bool { return c > 0 }) }
	case "First":
		return func(values []any, _ int) (any, error) { return values[0], nil }
	case "Concat":
		return mergeConcat
	case "Agreed":
		return mergeAgreed
	}
	return nil
}

func mergeSum(values []any, _ int) (any, error) {
	var whole int64
	var broken float64
	isBroken := false
	for _, v := range values {
		switch n := v.(type) {
		case int64:
			whole += n
		case float64:
			broken, isBroken = broken+n, true
		default:
			return nil, fmt.Errorf("%v is not a number", v)
		}
	}
	if isBroken {
		return broken + float64(whole), nil
	}
	return whole, nil
}

// extreme returns the value that compares to all others as wanted. Times in this format sort as
// strings.
func extreme(values []any, wanted func(int) bool) (any, error) {
	best := values[0]
	for _, v := range values {
		c, err := compare(v, best)
		if err != nil {
			return nil, err
		}
		if wanted(c) {
			best = v
		}
	}
	return best, nil
}

func compare(a, b any) (int, error) {
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			return cmp.Compare(s, t), nil
		}
	}
	x, ok := asFloat(a)
	y, also := asFloat(b)
	if !ok || !also {
		return 0, fmt.Errorf("cannot compare %v and %v", a, b)
	}
	return cmp.Compare(x, y), nil
}

func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func mergeConcat(values []any, _ int) (any, error) {
	out := []any{}
	for _, v := range values {
		list, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("%v is not a list", v)
		}
		out = append(out, list...)
	}
	return out, nil
}

func mergeAgreed(values []any, of int) (any, error) {
	if len(values) < of {
		return nil, nil
	}
	for _, v := range values {
		if !reflect.DeepEqual(v, values[0]) {
			return nil, nil
		}
	}
	return values[0], nil
}
