package providers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// goesUnused is after how long without calls a configuration that nobody asks for any more is forgotten, with
	// its secrets. Its process is stopped long before.
	goesUnused = time.Hour
	// goesRetired is the same of one that another has replaced: a plan or an apply may still hold it.
	goesRetired = 10 * time.Minute
	sweepEvery  = time.Minute
)

// running is an Instance, as far as it is needed here.
type running interface {
	contract.Provider
	Close()
}

// slotKey is what a configured provider is asked for by.
type slotKey struct{ provider, namespace, config string }

// slot is where a provider of one configuration is. Whoever has its turn may look and change.
type slot struct {
	turn    chan struct{} // of one element
	checked time.Time
	// of is the identity of what is used, or was tried.
	of       string
	revision string
	use      *use
	failed   error
	failedAt time.Time
}

// opened are all that run, or could at once.
type opened struct {
	clock clock.WithTicker

	mu    sync.Mutex
	slots map[slotKey]*slot
	uses  map[*use]struct{} // current and retired
}

func newOpened(clock clock.WithTicker) *opened {
	return &opened{clock: clock, slots: map[slotKey]*slot{}, uses: map[*use]struct{}{}}
}

// slot gives the one of a key, with the caller's turn at it. The caller gives it back.
func (o *opened) slot(ctx context.Context, key slotKey) (*slot, error) {
	for {
		o.mu.Lock()
		s := o.slots[key]
		if s == nil {
			s = &slot{turn: make(chan struct{}, 1)}
			o.slots[key] = s
		}
		o.mu.Unlock()
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		o.mu.Lock()
		same := o.slots[key] == s
		o.mu.Unlock()
		if same {
			return s, nil
		}
		<-s.turn // it was swept away in between
	}
}

func (s *slot) giveBack() { <-s.turn }

// take puts a new Instance into a slot. The caller has its turn.
func (o *opened) take(s *slot, u *use) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retire(s)
	s.use = u
	o.uses[u] = struct{}{}
}

// drop takes away what a slot has.
func (o *opened) drop(s *slot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retire(s)
}

// retire has the Instance of a slot closed when nobody has called it for a while. The lock is held.
func (o *opened) retire(s *slot) {
	if s.use != nil {
		s.use.retire()
		s.use, s.of = nil, ""
	}
}

// retireAll retires what is of a Provider that is gone.
func (o *opened) retireAll(provider string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, s := range o.slots {
		if key.provider != provider {
			continue
		}
		select {
		case s.turn <- struct{}{}:
			o.retire(s)
			delete(o.slots, key)
			<-s.turn
		default: // somebody opens it, and will find that there is no such Provider the next time
		}
	}
}

func (o *opened) sweepUntil(ctx context.Context) {
	ticker := o.clock.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C():
			o.sweep(now)
		}
	}
}

// sweep closes what nobody uses.
func (o *opened) sweep(now time.Time) {
	o.mu.Lock()
	for key, s := range o.slots {
		select {
		case s.turn <- struct{}{}:
			if s.use == nil && now.Sub(s.checked) >= goesUnused || s.use != nil && s.use.unusedFor(now) >= goesUnused && now.Sub(s.checked) >= goesUnused {
				o.retire(s)
				delete(o.slots, key)
			}
			<-s.turn
		default:
		}
	}
	var ended []*use
	for u := range o.uses {
		if u.endIfDone(now) {
			delete(o.uses, u)
			ended = append(ended, u)
		}
	}
	o.mu.Unlock()
	for _, u := range ended {
		u.provider.Close()
	}
}

// use is a provider that callers share. It takes what is secret in its configuration out of what it says, and
// goes on for whoever holds it though another has taken its place.
type use struct {
	provider running
	mask     schema.Mask
	clock    clock.PassiveClock
	warned   string // what it said of its configuration

	mu      sync.Mutex
	calls   int
	last    time.Time
	retired bool
	ended   bool
}

var _ contract.Provider = (*use)(nil)

func newUse(provider running, mask schema.Mask, clock clock.PassiveClock) *use {
	return &use{provider: provider, mask: mask, clock: clock, last: clock.Now()}
}

func (u *use) retire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired = true
}

func (u *use) unusedFor(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return 0
	}
	return now.Sub(u.last)
}

// endIfDone tells whether a retired one is to be closed. It takes no more calls then.
func (u *use) endIfDone(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.retired || u.calls > 0 || now.Sub(u.last) < goesRetired {
		return false
	}
	u.ended = true
	return true
}

func (u *use) begin() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return fmt.Errorf("%w: its ProviderConfig, or its Provider, has changed a while ago; ask again", contract.ErrNotAsked)
	}
	u.calls++
	return nil
}

func (u *use) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls--
	u.last = u.clock.Now()
}

// ask makes a call, and masks what is said.
func ask[T any](u *use, call func() (T, error), said func(*T) *contract.Diagnostics) (T, error) {
	if err := u.begin(); err != nil {
		var none T
		return none, err
	}
	defer u.end()
	answer, err := call()
	if d := said(&answer); len(*d) > 0 {
		*d = u.mask.Diagnostics(*d)
	}
	return answer, u.masked(err)
}

// maskedError is an error in other words, of the same kind.
type maskedError struct {
	text  string
	cause error
}

func (e *maskedError) Error() string { return e.text }

// Is tells what kind it is. There is no Unwrap: the cause says what is masked.
func (e *maskedError) Is(target error) bool { return errors.Is(e.cause, target) }

func (u *use) masked(err error) error {
	if err == nil {
		return nil
	}
	if text := u.mask.Text(err.Error()); text != err.Error() {
		return &maskedError{text, err}
	}
	return err
}

// Catalog implements contract.Provider.
func (u *use) Catalog() contract.Catalog { return u.provider.Catalog() }

func itself(d *contract.Diagnostics) *contract.Diagnostics { return d }

// ValidateResource implements contract.Provider.
func (u *use) ValidateResource(ctx context.Context, typeName string, config *contract.Configuration) (contract.Diagnostics, error) {
	return ask(u, func() (contract.Diagnostics, error) { return u.provider.ValidateResource(ctx, typeName, config) }, itself)
}

// ValidateData implements contract.Provider.
func (u *use) ValidateData(ctx context.Context, typeName string, config cty.Value) (contract.Diagnostics, error) {
	return ask(u, func() (contract.Diagnostics, error) { return u.provider.ValidateData(ctx, typeName, config) }, itself)
}

// Upgrade implements contract.Provider.
func (u *use) Upgrade(ctx context.Context, typeName string, stored contract.StoredState) (contract.UpgradeAnswer, error) {
	return ask(u, func() (contract.UpgradeAnswer, error) { return u.provider.Upgrade(ctx, typeName, stored) },
		func(a *contract.UpgradeAnswer) *contract.Diagnostics { return &a.Diagnostics })
}

// Read implements contract.Provider.
func (u *use) Read(ctx context.Context, request contract.ReadRequest) (contract.ReadAnswer, error) {
	return ask(u, func() (contract.ReadAnswer, error) { return u.provider.Read(ctx, request) },
		func(a *contract.ReadAnswer) *contract.Diagnostics { return &a.Diagnostics })
}

// Plan implements contract.Provider.
func (u *use) Plan(ctx context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	return ask(u, func() (contract.PlanAnswer, error) { return u.provider.Plan(ctx, request) },
		func(a *contract.PlanAnswer) *contract.Diagnostics { return &a.Diagnostics })
}

// Apply implements contract.Provider.
func (u *use) Apply(ctx context.Context, request contract.ApplyRequest) (contract.ApplyAnswer, error) {
	return ask(u, func() (contract.ApplyAnswer, error) { return u.provider.Apply(ctx, request) },
		func(a *contract.ApplyAnswer) *contract.Diagnostics { return &a.Diagnostics })
}

// Import implements contract.Provider.
func (u *use) Import(ctx context.Context, typeName, id string) (contract.ImportAnswer, error) {
	return ask(u, func() (contract.ImportAnswer, error) { return u.provider.Import(ctx, typeName, id) },
		func(a *contract.ImportAnswer) *contract.Diagnostics { return &a.Diagnostics })
}

// ReadData implements contract.Provider.
func (u *use) ReadData(ctx context.Context, typeName string, config cty.Value) (contract.DataAnswer, error) {
	return ask(u, func() (contract.DataAnswer, error) { return u.provider.ReadData(ctx, typeName, config) },
		func(a *contract.DataAnswer) *contract.Diagnostics { return &a.Diagnostics })
}
