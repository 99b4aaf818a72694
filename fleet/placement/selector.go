package placement

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// costLimit bounds the evaluation of one expression for one cluster.
const costLimit = 100_000

// selector is a compiled ClusterSelector.
type selector struct {
	names  map[string]bool
	labels labels.Selector
	fields []field
	source string
	cel    cel.Program
}

type field struct {
	v1alpha1.FieldRequirement
	path []string
}

// compileSelector compiles a selector; nil selects all clusters.
func compileSelector(s *v1alpha1.ClusterSelector) (*selector, error) {
	if s == nil {
		return nil, nil
	}
	out := &selector{source: s.Expression}
	if len(s.Names) > 0 {
		out.names = map[string]bool{}
		for _, name := range s.Names {
			out.names[name] = true
		}
	}
	if s.LabelSelector != nil {
		l, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("labelSelector: %w", err)
		}
		out.labels = l
	}
	for _, f := range s.Fields {
		out.fields = append(out.fields, field{f, strings.Split(f.Path, ".")})
	}
	if s.Expression != "" {
		program, err := compileExpression(s.Expression)
		if err != nil {
			return nil, fmt.Errorf("expression: %w", err)
		}
		out.cel = program
	}
	return out, nil
}

func compileExpression(source string) (cel.Program, error) {
	env, err := cel.NewEnv(cel.Variable("cluster", cel.DynType))
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, fmt.Errorf("the result of %q has type %s, want bool", source, t)
	}
	return env.Program(ast, cel.CostLimit(costLimit))
}

// readsObject reports whether the selector reads more of a Cluster than its name and labels.
func (s *selector) readsObject() bool {
	return s != nil && (len(s.fields) > 0 || s.cel != nil)
}

// selects reports whether a cluster is selected. object returns the complete Cluster, and is called
// only if the selector reads it.
func (s *selector) selects(c *Cluster, object func() map[string]any) bool {
	return s == nil || s.against(c, object) == ""
}

// against returns why a cluster is not selected, or "" if it is.
func (s *selector) against(c *Cluster, object func() map[string]any) string {
	if s.names != nil && !s.names[c.Name] {
		return "its name is not listed"
	}
	if s.labels != nil && !s.labels.Matches(labels.Set(c.Labels)) {
		return fmt.Sprintf("its labels do not match (%s)", s.labels)
	}
	for _, f := range s.fields {
		if !f.holds(object()) {
			return fmt.Sprintf("%s does not match (%s)", f.Path, f.text())
		}
	}
	if s.cel == nil {
		return ""
	}
	result, _, err := s.cel.Eval(map[string]any{"cluster": object()})
	switch {
	case err != nil:
		return fmt.Sprintf("the expression cannot be evaluated (%v)", err)
	case result.Value() != true:
		return fmt.Sprintf("the expression is false (%s)", s.source)
	}
	return ""
}

func (f field) text() string {
	return strings.TrimSpace(string(f.Operator) + " " + strings.Join(f.Values, ", "))
}

func (f field) holds(object map[string]any) bool {
	value, found := lookUp(object, f.path)
	switch f.Operator {
	case v1alpha1.FieldExists:
		return found
	case v1alpha1.FieldDoesNotExist:
		return !found
	case v1alpha1.FieldIn:
		return found && slices.Contains(f.Values, fmt.Sprint(value))
	case v1alpha1.FieldNotIn:
		return !found || !slices.Contains(f.Values, fmt.Sprint(value))
	}
	if !found || len(f.Values) != 1 {
		return false
	}
	order, err := compare(fmt.Sprint(value), f.Values[0])
	return err == nil && (f.Operator == v1alpha1.FieldGt && order > 0 || f.Operator == v1alpha1.FieldLt && order < 0)
}

func lookUp(object map[string]any, path []string) (any, bool) {
	var value any = object
	for _, name := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = m[name]; !ok {
			return nil, false
		}
	}
	return value, true
}

// compare orders two numbers, quantities or versions.
func compare(a, b string) (int, error) {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX == nil && errY == nil {
		switch {
		case x < y:
			return -1, nil
		case x > y:
			return 1, nil
		}
		return 0, nil
	}
	p, errP := resource.ParseQuantity(a)
	q, errQ := resource.ParseQuantity(b)
	if errP == nil && errQ == nil {
		return p.Cmp(q), nil
	}
	v, err := version.ParseGeneric(a)
	if err != nil {
		return 0, errors.New("not a number, quantity or version: " + a)
	}
	return v.Compare(b)
}

// ClusterSelection is a compiled ClusterSelector, for others than placement policies.
type ClusterSelection struct{ selector *selector }

// CompileClusterSelector compiles a selector; nil selects all clusters.
func CompileClusterSelector(s *v1alpha1.ClusterSelector) (ClusterSelection, error) {
	compiled, err := compileSelector(s)
	return ClusterSelection{compiled}, err
}

// Selects reports whether a Cluster is selected.
func (s ClusterSelection) Selects(c *v1alpha1.Cluster) bool {
	facts := Cluster{Name: c.Name, Labels: c.Labels, Object: c}
	return s.selector.selects(&facts, facts.content)
}
