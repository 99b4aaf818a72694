package tenancy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
)

// A workspace in a workspace with limits takes its limits from those. DESIGN.md says why no more than them is ever used.

// Budget returns the part of its parent's limits that a Workspace takes, in addition to its own object.
func Budget(w *v1alpha1.Workspace) kv.Usage { return budgetOf(Limits(w)) }

func budgetOf(l kv.Limits) kv.Usage {
	value := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return max(*n, 0)
	}
	return kv.Usage{Keys: value(l.Keys), Bytes: value(l.Bytes), Units: min(1+value(l.Units), kv.MaxReserved)}
}

// BudgetOf is Budget for a stored object.
func BudgetOf(obj runtime.Object) (kv.Usage, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return kv.Usage{}, fmt.Errorf("the limits of a workspace in a %T cannot be read", obj)
	}
	limits, err := LimitsIn(u)
	if err != nil {
		return kv.Usage{}, err
	}
	return budgetOf(limits), nil
}

// LimitsIn is Limits for an object that may not be valid.
func LimitsIn(w *unstructured.Unstructured) (kv.Limits, error) {
	given, _, err := unstructured.NestedMap(w.Object, "spec", "limits")
	if err != nil || given == nil {
		return kv.Limits{}, err
	}
	limits := &v1alpha1.WorkspaceLimits{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(given, limits); err != nil {
		return kv.Limits{}, fmt.Errorf("read spec.limits of workspace %s: %w", w.GetName(), err)
	}
	return limitsOf(limits), nil
}

// kind is one of the limits.
type kind struct {
	// field is its name in spec.limits.
	field string
	limit func(kv.Limits) *int64
	used  func(kv.Usage) int64
}

func kinds() []kind {
	return []kind{
		{"objects", func(l kv.Limits) *int64 { return l.Keys }, func(u kv.Usage) int64 { return u.Keys }},
		{"bytes", func(l kv.Limits) *int64 { return l.Bytes }, func(u kv.Usage) int64 { return u.Bytes }},
		{"workspaces", func(l kv.Limits) *int64 { return l.Units }, func(u kv.Usage) int64 { return u.Units }},
	}
}

// CheckBudget returns an error if a Workspace lacks a limit that its parent has. before are its limits before the request: a Workspace that
// lacks one already keeps its labels and its finalizers changeable.
func CheckBudget(parent string, has kv.Limits, used kv.Usage, before *kv.Limits, is kv.Limits) error {
	for _, k := range kinds() {
		limit := k.limit(has)
		if limit == nil || k.limit(is) != nil || before != nil && k.limit(*before) == nil {
			continue
		}
		left := max(*limit-k.used(used), 0)
		return fmt.Errorf("spec.limits.%s is missing: workspace %q has a limit of %s, and the workspaces in it take theirs from it: set spec.limits.%s, or create the workspace with a type that does; %d of %d remain, and the Workspace takes a little more than its limits",
			k.field, parent, k.field, k.field, left, *limit)
	}
	return nil
}

// Missing returns the fields of limits that a Workspace sets, and did not set before.
func Missing(before, is kv.Limits) (fields []string) {
	for _, k := range kinds() {
		if k.limit(is) != nil && k.limit(before) == nil {
			fields = append(fields, k.field)
		}
	}
	return fields
}

// namedChildren bounds how many workspaces an error names.
const namedChildren = 3

// CheckChildren returns an error if workspaces in one that gets limits lack them.
func CheckChildren(name string, before, is kv.Limits, children []*v1alpha1.Workspace) error {
	fields := Missing(before, is)
	if len(fields) == 0 {
		return nil
	}
	var lacking []string
	for _, child := range children {
		has := Limits(child)
		if slices.ContainsFunc(kinds(), func(k kind) bool { return slices.Contains(fields, k.field) && k.limit(has) == nil }) {
			lacking = append(lacking, child.Name)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	slices.Sort(lacking)
	text := strings.Join(lacking[:min(len(lacking), namedChildren)], ", ")
	if more := len(lacking) - namedChildren; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("workspaces in %s lack spec.limits.%s, which they would take from its limits: %s: set the limits of each of them first, or delete it", name, strings.Join(fields, " or spec.limits."), text)
}

// Obeyed returns the limits that a workspace obeys in a parent with limits. It has those that it lacks as 0: it stores nothing new until
// they are set.
func Obeyed(is, parent kv.Limits) kv.Limits {
	none := func(limit, above *int64) *int64 {
		if limit == nil && above != nil {
			return new(int64)
		}
		return limit
	}
	return kv.Limits{Keys: none(is.Keys, parent.Keys), Bytes: none(is.Bytes, parent.Bytes), Units: none(is.Units, parent.Units)}
}

// Lowered returns the amounts that a reservation may be lowered to when the workspace obeys limits that need less: those, or its usage
// beyond them. It never raises an amount, except to those that the limits need.
func Lowered(reserved, needed, used kv.Usage) kv.Usage {
	used.Units++ // the workspace itself
	return needed.Max(reserved.Min(used))
}

// storedLimits are the limits in a workspace's own keyspace, as of a generation of its Workspace. Another Workspace has the keyspace when the
// workspace has moved.
type storedLimits struct {
	kv.Limits
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
}

// EncodeLimits returns the limits of a Workspace as its keyspace stores them.
func EncodeLimits(w *v1alpha1.Workspace) ([]byte, error) {
	return json.Marshal(storedLimits{Limits(w), w.UID, w.Generation})
}

// AreStale reports whether stored limits are those of an earlier generation of the Workspace, or of another one.
func AreStale(stored []byte, w *v1alpha1.Workspace) bool {
	var of storedLimits
	return json.Unmarshal(stored, &of) != nil || of.UID != w.UID || of.Generation < w.Generation
}
