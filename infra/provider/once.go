package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/contract"
)

const (
	// callKey is under what a call's name goes with it to its keeper.
	callKey = "atoll-call-bin"
	// verdictKey is under what a keeper says that it did not make a call, and why.
	verdictKey    = "atoll-keeper"
	verdictKnown  = "known"
	verdictNotNow = "not begun"
)

// errKnown is of a call that a keeper did not make, because the journal knows it.
var errKnown = errors.New("the call is known")

// errNotBegun is of a call that a keeper could not begin.
var errNotBegun = errors.New("its keeper did not begin it")

// askAgain is after how long a journal is looked into again while somebody else makes a call.
const askAgain = 50 * time.Millisecond

// nameOf is nil for a call that can be made as often as asked.
func nameOf(r contract.ApplyRequest, k *kind) *callName {
	if r.Call == "" {
		return nil
	}
	return &callName{Call: r.Call, Type: k.name, Form: k.form}
}

func (n *callName) attach(ctx context.Context) (context.Context, error) {
	text, err := json.Marshal(n)
	return metadata.AppendToOutgoingContext(ctx, callKey, string(text)), err
}

// attached is the name that came with a call, or nil.
func attached(ctx context.Context) (*callName, error) {
	values := metadata.ValueFromIncomingContext(ctx, callKey)
	if len(values) == 0 {
		return nil, nil
	}
	n := &callName{}
	return n, json.Unmarshal([]byte(values[0]), n)
}

// keeperSays tells what a keeper has to say from what the provider does.
func keeperSays(trailer metadata.MD, err error) error {
	for _, verdict := range trailer.Get(verdictKey) {
		switch verdict {
		case verdictKnown:
			return errKnown
		case verdictNotNow:
			return fmt.Errorf("%w: %s", errNotBegun, status.Convert(err).Message())
		}
	}
	return err
}

// askOnce makes a call that has a name, unless it was made before: then it gives the answer that
// there was.
func (i *Instance) askOnce(ctx context.Context, q question, request, answer proto.Message) error {
	if i.host.journal == nil || q.name == nil {
		q.name = nil
		return i.ask(ctx, q, request, answer)
	}
	if len(q.name.Call) > longestCall {
		return i.notAsked(fmt.Errorf("the name of the call has %d bytes: give it at most %d", len(q.name.Call), longestCall))
	}
	if !utf8.ValidString(q.name.Call) {
		return i.notAsked(errors.New("the name of the call is no UTF-8: give it a name that is"))
	}
	for {
		found, err := i.recall(ctx, q, answer)
		if found || err != nil {
			return err
		}
		err = i.ask(ctx, q, request, answer)
		if errors.Is(err, errKnown) {
			continue // somebody else was faster
		}
		return i.secondThought(q, answer, err)
	}
}

// secondThought looks what became of a call whose process ended under it. It may not have got
// there, or been answered.
func (i *Instance) secondThought(q question, answer proto.Message, err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return err
	}
	r, lookErr := i.host.journal.look(q.name.Call)
	switch {
	case lookErr != nil:
		return err
	case r.known == callAbsent:
		return i.notAsked(lost)
	case r.known == callMade && r.outcome.code == codes.OK:
		return i.recorded(q, r, answer)
	}
	return err
}

// recall finds the answer to a call that was made before, and waits for it while a keeper is at
// it.
func (i *Instance) recall(ctx context.Context, q question, answer proto.Message) (found bool, err error) {
	giveUp := i.clock.Now().Add(q.timeout)
	for {
		r, err := i.host.journal.look(q.name.Call)
		switch {
		case err != nil:
			return false, i.unavailable(q, fmt.Errorf("the journal of calls: %w", err))
		case r.known == callAbsent:
			return false, nil
		case r.known != callRunning:
			return true, i.recorded(q, r, answer)
		case i.clock.Now().After(giveUp):
			return false, i.unavailable(q, fmt.Errorf("it was begun before: %w: within %s", errHung, q.timeout))
		}
		timer := i.clock.NewTimer(askAgain)
		select {
		case <-timer.C():
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-i.closing:
			err = errStopping
		}
		timer.Stop()
		return false, i.unavailable(q, fmt.Errorf("it was begun before, and goes on: %w", err))
	}
}

// recorded gives the answer in a record.
func (i *Instance) recorded(q question, r record, answer proto.Message) error {
	switch {
	case r.known == callLost:
		return i.unavailable(q, errors.New("it was begun before, and what ran it was ended before it had an answer: "+
			"nobody knows whether it was done; look what became of the resource"))
	case r.known == callForgotten:
		return i.unavailable(q, fmt.Errorf("it was made before, and its answer is no longer kept after %s: look what became of the resource", answersKept))
	case r.known == callSealed:
		return i.unavailable(q, errors.New("it was made before, and the key that its answer was sealed with is gone: look what became of the resource"))
	case r.name.Type != q.name.Type:
		return i.unavailable(q, fmt.Errorf("a call of that name was made before, of %s: names are for one call each", r.name.Type))
	case r.outcome.code != codes.OK:
		return i.unavailable(q, errors.New("it was made before, and had no answer: "+i.mask.text(r.outcome.message)))
	case r.name.Form != q.name.Form:
		return i.unavailable(q, errors.New("it was made before, by a version of the provider with another schema, and its answer cannot be read with this one: "+
			"install that version again, or look what became of the resource"))
	}
	if err := proto.Unmarshal(r.outcome.answer, answer); err != nil {
		return i.unavailable(q, errors.New("it was made before, and the answer is no message of the protocol"))
	}
	return nil
}

// Journal is what the journal is called, empty if there is none: a call that was begun where it was called so can be asked for again
// here, and no other.
func (h *Host) Journal() string { return h.name }

// Acknowledge forgets a call: its answer is stored elsewhere, or it is not to be asked for again. Who
// asks for it afterwards has it made anew. A call that is not known is no error.
func (h *Host) Acknowledge(call string) error {
	if h.journal == nil {
		return nil
	}
	if err := h.journal.forget(call); err != nil {
		return fmt.Errorf("acknowledging call %q: %w", call, err)
	}
	return nil
}

// sweeps have a journal swept, now and then. Not at once: who was away for long gets a day to
// ask for its answers.
type sweeps struct {
	journal *journal
	clock   clock.WithDelayedExecution

	mu      sync.Mutex
	next    clock.Timer
	stopped bool
}

func startSweeps(j *journal, clock clock.WithDelayedExecution) *sweeps {
	s := &sweeps{journal: j, clock: clock}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan()
	return s
}

// plan has the lock held.
func (s *sweeps) plan() {
	// A goroutine, because a clock may call it while it holds locks of its own.
	s.next = s.clock.AfterFunc(answersKept, func() { go s.sweep() })
}

func (s *sweeps) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	// What cannot be swept now is tomorrow.
	_ = s.journal.sweep(s.clock.Now())
	s.plan()
}

func (s *sweeps) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.next.Stop()
}
