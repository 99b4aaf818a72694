package webhooks

import (
	"context"
	"errors"
	"sync"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Direct answers questions by asking at once. It is for programs that run for one decision, such as a preview.
// It asks each question once. A webhook that does not respond is not asked again.
type Direct struct {
	ctx context.Context
	ask Ask

	mu       sync.Mutex
	outcomes map[string]outcome
	failed   map[string]error // webhooks that do not respond
}

type outcome struct {
	answer interpret.Answer
	err    error
}

// NewDirect returns a Direct that asks until ctx ends.
func NewDirect(ctx context.Context, ask Ask) *Direct {
	return &Direct{ctx: ctx, ask: ask, outcomes: map[string]outcome{}, failed: map[string]error{}}
}

// Answer implements interpret.Answers. Unlike others it waits.
func (d *Direct) Answer(q interpret.Question) (interpret.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key, webhook := q.Key(), webhookOf(&q)
	if o, known := d.outcomes[key]; known {
		return o.answer, o.err
	}
	if err := d.failed[webhook]; err != nil {
		return interpret.Answer{}, err
	}
	var o outcome
	o.answer, o.err = d.ask(d.ctx, q)
	var refused *interpret.RefusedError
	if o.err != nil && !errors.As(o.err, &refused) {
		d.failed[webhook] = o.err
	}
	d.outcomes[key] = o
	return o.answer, o.err
}
