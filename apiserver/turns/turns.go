// Package turns bounds how many requests of one workspace evaluate expressions (CEL) at the same time.
//
// Upstream bounds the cost of expressions for each policy, parameter and object, to about a second of CPU time, and a workspace may
// have any number of them. So a request may compute until its timeout, and hundreds of such requests would take all processors. Here
// the requests of one workspace evaluate expressions in turns, which are fewer than the processors.
package turns

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// turnWait bounds how long a request waits for its turn.
const turnWait = 10 * time.Second

// Turns are those of one workspace. The channel has an element for each one that is taken.
type Turns chan struct{}

// New returns the turns of a workspace: one for every two processors.
func New() Turns { return make(Turns, max(1, runtime.GOMAXPROCS(0)/2)) }

// turn is that of one request. More than one part of the request may use it at the same time.
type turn struct {
	taken Turns

	mu sync.Mutex
	// users is how many parts of the request use the turn; rules is set if the rules of its object do.
	users int
	rules bool
	// calls are those of webhooks that run: the request has no turn meanwhile. failed is set if it did not get it back.
	calls  int
	failed error
}

type turnKey struct{}

// With gives each request that may write a turn, and ends it with the request. of returns the turns of the request's workspace, nil if the
// request needs none.
func With(next http.Handler, of func(context.Context) Turns) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		turns := of(ctx)
		if r.Method == http.MethodGet || turns == nil {
			next.ServeHTTP(w, r)
			return
		}
		t := &turn{taken: turns}
		defer t.endRules()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, turnKey{}, t)))
	})
}

// turnOf returns the turn of a request, nil if it needs none.
func turnOf(ctx context.Context) *turn {
	t, _ := ctx.Value(turnKey{}).(*turn)
	return t
}

// enter takes the turn, or waits until one is free. The caller calls leave, unless there is an error.
func (t *turn) enter(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enterLocked(ctx)
}

func (t *turn) enterLocked(ctx context.Context) error {
	if t.users == 0 {
		if err := t.take(ctx); err != nil {
			return err
		}
	}
	t.users++
	return nil
}

// take waits for a free turn of the workspace.
func (t *turn) take(ctx context.Context) error {
	timeout := time.NewTimer(turnWait)
	defer timeout.Stop()
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-timeout.C:
		return tooManyTurns(cap(t.taken))
	case <-ctx.Done():
		return tooManyTurns(cap(t.taken))
	}
}

// Wait takes a turn for the controllers of the workspace, which wait for as long as it takes.
func (t Turns) Wait(ctx context.Context) (end func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func tooManyTurns(n int) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("other requests of the workspace evaluate expressions of policies or definitions, and %d may at the same time: "+
		"retry later, or let the expressions cost less", n), 1)
}

func (t *turn) leave() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLocked()
}

func (t *turn) leaveLocked() {
	if t.users == 0 { // it was lost during a call: see resume
		return
	}
	if t.users--; t.users == 0 {
		<-t.taken
	}
}

// beginRules takes the turn for the validation of an object. An update that is tried again begins more than once.
func (t *turn) beginRules(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rules {
		return nil
	}
	err := t.enterLocked(ctx)
	t.rules = err == nil
	return err
}

func (t *turn) endRules() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rules {
		t.rules = false
		t.leaveLocked()
	}
}

// RulesBegin is the last plugin that changes an object. Upstream then validates it, by the rules of its definition, and compiles the
// expressions of definitions and policies.
type RulesBegin struct {
	// Evaluates reports whether that evaluates or compiles expressions for objects of a group.
	Evaluates func(group string) bool
}

var _ admission.MutationInterface = RulesBegin{}

func (RulesBegin) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit implements admission.MutationInterface.
func (r RulesBegin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !r.Evaluates(a.GetResource().Group) {
		return nil
	}
	return turnOf(ctx).beginRules(ctx)
}

// RulesEnd is the first plugin that validates an object: upstream has done so before.
type RulesEnd struct{}

var _ admission.ValidationInterface = RulesEnd{}

func (RulesEnd) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Validate implements admission.ValidationInterface.
func (RulesEnd) Validate(ctx context.Context, _ admission.Attributes, _ admission.ObjectInterfaces) error {
	turnOf(ctx).endRules()
	return nil
}

// OfPolicies returns upstream's plugin of validating or mutating policies, whose expressions requests then evaluate in turns.
func OfPolicies(plugin admission.Interface) admission.Interface { return policies{plugin} }

type policies struct{ admission.Interface }

// inTurn evaluates the policies when it is the turn of the request.
func (p policies) inTurn(ctx context.Context, evaluate func() error) error {
	if plugin, ok := p.Interface.(interface{ WaitForReady() bool }); ok {
		plugin.WaitForReady() // without the turn; the plugin asks again
	}
	t := turnOf(ctx)
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	return evaluate()
}

// Admit implements admission.MutationInterface.
func (p policies) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, ok := p.Interface.(admission.MutationInterface)
	if !ok {
		return nil
	}
	return p.inTurn(ctx, func() error { return plugin.Admit(ctx, a, o) })
}

// Validate implements admission.ValidationInterface.
func (p policies) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, ok := p.Interface.(admission.ValidationInterface)
	if !ok {
		return nil
	}
	return p.inTurn(ctx, func() error { return plugin.Validate(ctx, a, o) })
}
