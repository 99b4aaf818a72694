package plugin

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

	"github.com/atoll-dev/atoll/infra/providerapi"
)

const (
	// callKey is the metadata key of a call's name.
	callKey = "atoll-call-bin"
	// verdictKey is the metadata key of the reason why a keeper did not make a call.
	verdictKey    = "atoll-keeper"
	verdictKnown  = "known"
	verdictNotNow = "not begun"
)

// errKnown reports a call that a keeper did not make because the journal already has it.
var errKnown = errors.New("the call is already in the journal")

// errNotBegun reports a call that a keeper could not begin.
var errNotBegun = errors.New("its keeper did not begin the call")

// pollInterval is how often the journal is read while another process makes a call.
const pollInterval = 50 * time.Millisecond

// nameOf returns nil for a call that may be repeated.
func nameOf(r providerapi.ApplyRequest, k *typeSchema) *callName {
	if r.Call == "" {
		return nil
	}
	return &callName{Call: r.Call, Type: k.name, Form: k.digest}
}

func (n *callName) attach(ctx context.Context) (context.Context, error) {
	text, err := json.Marshal(n)
	return metadata.AppendToOutgoingContext(ctx, callKey, string(text)), err
}

// attached returns the name that came with a call, or nil.
func attached(ctx context.Context) (*callName, error) {
	values := metadata.ValueFromIncomingContext(ctx, callKey)
	if len(values) == 0 {
		return nil, nil
	}
	n := &callName{}
	return n, json.Unmarshal([]byte(values[0]), n)
}

// keeperError distinguishes errors of the keeper from those of the provider.
func keeperError(trailer metadata.MD, err error) error {
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

// callOnce makes a named call, unless it was made before. Then it returns the recorded answer.
func (i *Instance) callOnce(ctx context.Context, spec callSpec, request, answer proto.Message) error {
	if i.host.journal == nil || spec.name == nil {
		spec.name = nil
		return i.call(ctx, spec, request, answer)
	}
	if len(spec.name.Call) > maxCallName {
		return i.notCalled(fmt.Errorf("the name of the call has %d bytes; the limit is %d", len(spec.name.Call), maxCallName))
	}
	if !utf8.ValidString(spec.name.Call) {
		return i.notCalled(errors.New("the name of the call is not valid UTF-8"))
	}
	for {
		found, err := i.awaitRecorded(ctx, spec, answer)
		if found || err != nil {
			return err
		}
		err = i.call(ctx, spec, request, answer)
		if errors.Is(err, errKnown) {
			continue // another call of this name came first
		}
		return i.resolveLost(spec, answer, err)
	}
}

// resolveLost looks up the outcome of a call whose process ended. The call may not have reached the
// process, or its answer may be recorded.
func (i *Instance) resolveLost(spec callSpec, answer proto.Message, err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return err
	}
	r, lookErr := i.host.journal.look(spec.name.Call)
	switch {
	case lookErr != nil:
		return err
	case r.state == callAbsent:
		return i.notCalled(lost)
	case r.state == callMade && r.outcome.code == codes.OK:
		return i.recordedAnswer(spec, r, answer)
	}
	return err
}

// awaitRecorded returns the answer to a call that was made before. While a keeper still makes the
// call, it waits.
func (i *Instance) awaitRecorded(ctx context.Context, spec callSpec, answer proto.Message) (found bool, err error) {
	giveUp := i.clock.Now().Add(spec.timeout)
	for {
		r, err := i.host.journal.look(spec.name.Call)
		switch {
		case err != nil:
			return false, i.unavailable(spec, fmt.Errorf("reading the journal of calls: %w", err))
		case r.state == callAbsent:
			return false, nil
		case r.state != callRunning:
			return true, i.recordedAnswer(spec, r, answer)
		case i.clock.Now().After(giveUp):
			return false, i.unavailable(spec, fmt.Errorf("the call was begun earlier: %w (%s)", errHung, spec.timeout))
		}
		timer := i.clock.NewTimer(pollInterval)
		select {
		case <-timer.C():
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-i.closing:
			err = errStopping
		}
		timer.Stop()
		return false, i.unavailable(spec, fmt.Errorf("the call was begun earlier and still runs: %w", err))
	}
}

// recordedAnswer decodes the answer in a record.
func (i *Instance) recordedAnswer(spec callSpec, r record, answer proto.Message) error {
	switch {
	case r.state == callLost:
		return i.unavailable(spec, errors.New("the call was begun earlier, and its process ended before it had an answer; "+
			"whether the change was made is unknown; check the resource"))
	case r.state == callForgotten:
		return i.unavailable(spec, fmt.Errorf("the call was made earlier, and its answer was deleted after %s; check the resource", answersKept))
	case r.state == callSealed:
		return i.unavailable(spec, errors.New("the call was made earlier, and the key that encrypts its answer is gone; check the resource"))
	case r.name.Type != spec.name.Type:
		return i.unavailable(spec, fmt.Errorf("another call with this name was made earlier, for %s; call names must be unique", r.name.Type))
	case r.outcome.code != codes.OK:
		return i.unavailable(spec, errors.New("the call was made earlier and failed: "+i.mask.text(r.outcome.message)))
	case r.name.Form != spec.name.Form:
		return i.unavailable(spec, errors.New("the call was made earlier by a provider version with another schema, and this version cannot decode its answer; "+
			"install that version again, or check the resource"))
	}
	if err := proto.Unmarshal(r.outcome.answer, answer); err != nil {
		return i.unavailable(spec, errors.New("the call was made earlier, and its recorded answer is not a valid protocol message"))
	}
	return nil
}

// Journal returns the journal's name, or "" without a journal. A call can be repeated only where
// the journal has the name that it had when the call was begun.
func (h *Host) Journal() string { return h.journalName }

// Acknowledge deletes the record of a call, once its answer is stored elsewhere or it will not be
// repeated. A repeated call would be a new one afterwards. Acknowledging an unknown call is not an
// error.
func (h *Host) Acknowledge(call string) error {
	if h.journal == nil {
		return nil
	}
	if err := h.journal.forget(call); err != nil {
		return fmt.Errorf("acknowledging call %q: %w", call, err)
	}
	return nil
}

// A sweeper sweeps a journal once a day. The first sweep is a day after the start, so that a server
// that was down for long can still fetch its answers.
type sweeper struct {
	journal *journal
	clock   clock.WithDelayedExecution

	mu      sync.Mutex
	next    clock.Timer
	stopped bool
}

func startSweeper(j *journal, clock clock.WithDelayedExecution) *sweeper {
	s := &sweeper{journal: j, clock: clock}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scheduleNext()
	return s
}

// scheduleNext requires the lock.
func (s *sweeper) scheduleNext() {
	// In a goroutine, because a clock may call the function while holding its own locks.
	s.next = s.clock.AfterFunc(answersKept, func() { go s.sweep() })
}

func (s *sweeper) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	// A failed sweep is retried the next day.
	_ = s.journal.sweep(s.clock.Now())
	s.scheduleNext()
}

func (s *sweeper) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.next.Stop()
}
