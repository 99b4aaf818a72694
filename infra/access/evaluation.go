package access

import (
	"context"
	"sync"

	"github.com/zclconf/go-cty/cty"
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/grants"
)

// evaluation is the context in which values are read.
type evaluation struct {
	// planAuthor is the user who created the plan. Specs without a recorded author have their rights.
	planAuthor *v1alpha1.Person
	// cache makes each value be read once.
	cache bool

	mu         sync.Mutex
	secrets    map[[2]string]func() (*corev1.Secret, error)
	kubernetes map[objectKey]func() (cty.Value, error)
	grants     map[string]func() ([]grants.Spec, error)
	// waiting are the workloads that the plan changes: their future status is unknown.
	workloads map[change.Address]bool
	// rediscovered is true once the kinds were discovered again.
	rediscovered bool
}

// objectKey identifies a read of an object. What one author may read, another may not.
type objectKey struct {
	ref    expr.Ref
	author string
}

type evaluationKey struct{}

func withEvaluation(ctx context.Context, r *evaluation) context.Context {
	r.secrets, r.kubernetes, r.grants = map[[2]string]func() (*corev1.Secret, error){}, map[objectKey]func() (cty.Value, error){}, map[string]func() ([]grants.Spec, error){}
	return context.WithValue(ctx, evaluationKey{}, r)
}

// ForPlan returns a context in which values are read for a plan: each once, so that the plan sees one moment
// as far as possible. changes are those of workloads: the future status of a workload that the plan places is
// unknown.
func ForPlan(ctx context.Context, plan *v1alpha1.Plan, changes []*change.Change) context.Context {
	r := &evaluation{planAuthor: plan.Spec.Author, cache: true, workloads: map[change.Address]bool{}}
	for _, c := range changes {
		r.workloads[c.Address] = c.Action == change.Place
	}
	return withEvaluation(ctx, r)
}

// ForApply returns a context in which values are read for an apply of a plan: whenever they are needed, as they
// are at that time, with the rights and grants of that time.
func ForApply(ctx context.Context, plan *v1alpha1.Plan) context.Context {
	return withEvaluation(ctx, &evaluation{planAuthor: plan.Spec.Author})
}

func evaluationOf(ctx context.Context) *evaluation {
	r, _ := ctx.Value(evaluationKey{}).(*evaluation)
	return r
}

// cached returns what this evaluation has read under a key, or reads it. Concurrent callers share one read.
func cached[K comparable, V any](r *evaluation, held func(*evaluation) map[K]func() (V, error), key K, read func() (V, error)) (V, error) {
	if r == nil || !r.cache {
		return read()
	}
	r.mu.Lock()
	once := held(r)[key]
	if once == nil {
		once = sync.OnceValues(read)
		held(r)[key] = once
	}
	r.mu.Unlock()
	return once()
}
