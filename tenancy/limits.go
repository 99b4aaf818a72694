package tenancy

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
)

// Limits returns the limits of a workspace's keyspace.
func Limits(w *v1alpha1.Workspace) (limits kv.Limits) {
	if w.Spec.Limits == nil {
		return kv.Limits{}
	}
	limits.Keys = w.Spec.Limits.Objects
	if bytes := w.Spec.Limits.Bytes; bytes != nil {
		n := bytes.Value()
		limits.Bytes = &n
	}
	return limits
}

// OnLimits calls f when the directory learns limits of a workspace that it did not know. f must not block.
func (d *Directory) OnLimits(f func(*v1alpha1.Workspace)) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		if is == nil {
			return
		}
		var before *v1alpha1.WorkspaceLimits
		if was != nil && was.UID == is.UID {
			before = was.Spec.Limits
		}
		if !equality.Semantic.DeepEqual(before, is.Spec.Limits) {
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
