package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
)

// Limits returns the limits of a workspace's keyspace, each at most kv.MaxReserved.
func Limits(w *v1alpha1.Workspace) (limits kv.Limits) { return limitsOf(w.Spec.Limits) }

func limitsOf(l *v1alpha1.WorkspaceLimits) (limits kv.Limits) {
	if l == nil {
		return kv.Limits{}
	}
	most := func(n *int64) *int64 {
		if n == nil {
			return nil
		}
		bounded := min(*n, kv.MaxReserved)
		return &bounded
	}
	limits.Keys, limits.Units = most(l.Objects), most(l.Workspaces)
	if l.Bytes != nil {
		n := l.Bytes.Value()
		limits.Bytes = most(&n)
	}
	return limits
}

// CompiledLimits returns how many definitions and expressions a workspace may have: see WorkspaceLimits.
func CompiledLimits(w *v1alpha1.Workspace) (definitions, expressions int64) {
	definitions, expressions = v1alpha1.DefaultDefinitions, v1alpha1.DefaultExpressions
	if l := w.Spec.Limits; l != nil {
		if l.Definitions != nil {
			definitions = *l.Definitions
		}
		if l.Expressions != nil {
			expressions = *l.Expressions
		}
	}
	return definitions, expressions
}

// AboveDefault returns the limits in a Workspace that are higher than those of a workspace that sets none, by the names of their fields. The
// object may not be valid.
func AboveDefault(w *unstructured.Unstructured) (fields []string) {
	for field, most := range map[string]int64{"definitions": v1alpha1.DefaultDefinitions, "expressions": v1alpha1.DefaultExpressions} {
		given, found, err := unstructured.NestedFieldNoCopy(w.Object, "spec", "limits", field)
		if n, ok := given.(int64); err == nil && found && given != nil && (!ok || n > most) {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// OnLimits calls f when the directory learns limits of a workspace that it did not know. f must not block.
func (d *Directory) OnLimits(f func(*v1alpha1.Workspace)) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		if is == nil {
			return
		}
		var before *v1alpha1.WorkspaceLimits
		placedBefore := false
		if was != nil && was.UID == is.UID {
			before, placedBefore = was.Spec.Limits, was.Spec.Placement != nil
		}
		if !equality.Semantic.DeepEqual(before, is.Spec.Limits) || placedBefore != (is.Spec.Placement != nil) {
			f(is)
		}
	})
}

// OnChangesBelow calls f with the path of a workspace in which Workspaces may have changed. f must not block.
func (d *Directory) OnChangesBelow(f func(parent string)) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		if is == nil {
			return
		}
		for path, id := range is.Status.Changes {
			if was == nil || was.Status.Changes[path] != id {
				f(path)
			}
		}
	})
}

// With calls f with a workspace if it is awake; if it is being opened or closed, With waits for that. The workspace may be closed while
// f runs.
func (p *Pool[W]) With(uid string, f func(W)) {
	p.mu.Lock()
	e := p.awake[uid]
	p.mu.Unlock()
	if e == nil {
		return
	}
	<-e.opened
	if e.err == nil {
		f(e.w)
	}
}

// Keys returns the UIDs of the workspaces that are awake.
func (p *Pool[W]) Keys() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]string, 0, len(p.awake))
	for uid := range p.awake {
		all = append(all, uid)
	}
	return all
}
