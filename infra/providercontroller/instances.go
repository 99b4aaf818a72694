package providercontroller

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// unusedTimeout is how long a configuration without calls is kept with its secrets. Its process
	// is stopped long before.
	unusedTimeout = time.Hour
	// retiredTimeout is the same for a replaced configuration: a plan or an apply may still hold
	// it.
	retiredTimeout = 10 * time.Minute
	sweepEvery     = time.Minute
)

// instance is the part of plugin.Instance that this package needs.
type instance interface {
	providerapi.Provider
	Close()
}

// slotKey identifies a ProviderConfig that is used.
type slotKey struct{ provider, namespace, config string }

// slot holds the provider of one configuration. Only the holder of its lock may use the other
// fields.
type slot struct {
	lock    chan struct{} // of capacity one
	checked time.Time
	// identity identifies the package and configuration that are in use or failed.
	identity string
	revision string
	current  *sharedProvider
	failed   error
	failedAt time.Time
}

// instancePool holds all providers that run or can be started at once. Slots with equal
// configurations share a provider: a dozen small namespaces with the same credentials need one process.
type instancePool struct {
	clock clock.WithTicker
	// key makes the digests of configurations useless outside of this process.
	key [32]byte

	mu        sync.Mutex
	slots     map[slotKey]*slot
	providers map[*sharedProvider]struct{} // current and retired
	byConfig  map[string]*sharedProvider   // current and retired, by configKey
	starting  map[string]chan struct{}     // closed when the provider of a configKey was started, or not
}

func newInstancePool(clock clock.WithTicker) *instancePool {
	o := &instancePool{clock: clock, slots: map[slotKey]*slot{}, providers: map[*sharedProvider]struct{}{}, byConfig: map[string]*sharedProvider{}, starting: map[string]chan struct{}{}}
	_, _ = rand.Read(o.key[:]) // never fails
	return o
}

// configKey identifies a package with a configuration. Equal configurations have equal keys, whatever
// Secrets they come from.
func (o *instancePool) configKey(identity string, config cty.Value) (string, error) {
	plain, _ := config.UnmarkDeep()
	encoded, err := msgpack.Marshal(plain, cty.DynamicPseudoType)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, o.key[:])
	fmt.Fprintf(h, "%d ", len(identity))
	io.WriteString(h, identity)
	h.Write(encoded)
	return string(h.Sum(nil)), nil
}

// share returns the provider of a configKey, or starts it. Concurrent callers start one.
func (o *instancePool) share(ctx context.Context, key string, start func() (*sharedProvider, error)) (*sharedProvider, error) {
	for {
		o.mu.Lock()
		if u := o.byConfig[key]; u != nil && u.revive() {
			o.mu.Unlock()
			return u, nil
		}
		other := o.starting[key]
		if other == nil {
			break
		}
		o.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	started := make(chan struct{})
	o.starting[key] = started
	o.mu.Unlock()
	u, err := start()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.starting, key)
	close(started)
	if err != nil {
		return nil, err
	}
	u.configKey = key
	o.byConfig[key], o.providers[u] = u, struct{}{}
	return u, nil
}

// slot returns the slot of a key, locked. The caller unlocks it.
func (o *instancePool) slot(ctx context.Context, key slotKey) (*slot, error) {
	for {
		o.mu.Lock()
		s := o.slots[key]
		if s == nil {
			s = &slot{lock: make(chan struct{}, 1)}
			o.slots[key] = s
		}
		o.mu.Unlock()
		select {
		case s.lock <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		o.mu.Lock()
		same := o.slots[key] == s
		o.mu.Unlock()
		if same {
			return s, nil
		}
		<-s.lock // the slot was removed meanwhile
	}
}

func (s *slot) unlock() { <-s.lock }

// set puts an instance of share into a slot, which the caller has locked.
func (o *instancePool) set(s *slot, u *sharedProvider) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u.slots++
	o.retire(s)
	s.current = u
	u.revive() // another slot may have retired it since
}

// drop retires the instance of a slot.
func (o *instancePool) drop(s *slot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retire(s)
}

// retire takes the instance from a slot. If no other slot has it, it is closed after a time without
// calls. The caller holds the lock.
func (o *instancePool) retire(s *slot) {
	if s.current == nil {
		return
	}
	if s.current.slots--; s.current.slots == 0 {
		s.current.retire()
	}
	s.current, s.identity = nil, ""
}

// retireAll retires the instances of a Provider that no longer exists.
func (o *instancePool) retireAll(provider string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, s := range o.slots {
		if key.provider != provider {
			continue
		}
		select {
		case s.lock <- struct{}{}:
			o.retire(s)
			delete(o.slots, key)
			<-s.lock
		default: // in use by Open, whose next call finds that the Provider does not exist
		}
	}
}

func (o *instancePool) sweepLoop(ctx context.Context) {
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

// sweep closes unused instances.
func (o *instancePool) sweep(now time.Time) {
	o.mu.Lock()
	for key, s := range o.slots {
		select {
		case s.lock <- struct{}{}:
			if s.current == nil && now.Sub(s.checked) >= unusedTimeout || s.current != nil && s.current.unusedFor(now) >= unusedTimeout && now.Sub(s.checked) >= unusedTimeout {
				o.retire(s)
				delete(o.slots, key)
			}
			<-s.lock
		default:
		}
	}
	var ended []*sharedProvider
	for u := range o.providers {
		if u.endIfUnused(now) {
			delete(o.providers, u)
			if o.byConfig[u.configKey] == u {
				delete(o.byConfig, u.configKey)
			}
			ended = append(ended, u)
		}
	}
	o.mu.Unlock()
	for _, u := range ended {
		u.provider.Close()
	}
}

// sharedProvider is a provider that callers share. It masks the secrets of its configuration in
// answers. When it is replaced, it keeps working for callers that hold it.
type sharedProvider struct {
	provider instance
	mask     schema.Mask
	clock    clock.PassiveClock
	warned   string // warnings about its configuration
	// configKey and slots belong to the pool: slots is how many have it.
	configKey string
	slots     int

	mu      sync.Mutex
	calls   int
	last    time.Time
	retired bool
	ended   bool
}

var _ providerapi.Provider = (*sharedProvider)(nil)

func newSharedProvider(provider instance, mask schema.Mask, clock clock.PassiveClock) *sharedProvider {
	return &sharedProvider{provider: provider, mask: mask, clock: clock, last: clock.Now()}
}

func (u *sharedProvider) retire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired = true
}

// revive undoes retire. It returns false if the provider was closed.
func (u *sharedProvider) revive() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return false
	}
	u.retired, u.last = false, u.clock.Now()
	return true
}

func (u *sharedProvider) unusedFor(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return 0
	}
	return now.Sub(u.last)
}

// endIfUnused reports whether a retired provider is to be closed. It accepts no more calls then.
func (u *sharedProvider) endIfUnused(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.retired || u.calls > 0 || now.Sub(u.last) < retiredTimeout {
		return false
	}
	u.ended = true
	return true
}

func (u *sharedProvider) begin() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return fmt.Errorf("%w: its ProviderConfig or its Provider has changed; retry", providerapi.ErrNotCalled)
	}
	u.calls++
	return nil
}

func (u *sharedProvider) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls--
	u.last = u.clock.Now()
}

// ask makes a call and masks its diagnostics.
func ask[T any](u *sharedProvider, call func() (T, error), diagnosticsOf func(*T) *providerapi.Diagnostics) (T, error) {
	if err := u.begin(); err != nil {
		var none T
		return none, err
	}
	defer u.end()
	answer, err := call()
	if d := diagnosticsOf(&answer); len(*d) > 0 {
		*d = u.mask.Diagnostics(*d)
	}
	return answer, u.masked(err)
}

// maskedError is an error with a masked text.
type maskedError struct {
	text  string
	cause error
}

func (e *maskedError) Error() string { return e.text }

// Is matches the cause. There is no Unwrap, because the text of the cause has the secrets.
func (e *maskedError) Is(target error) bool { return errors.Is(e.cause, target) }

func (u *sharedProvider) masked(err error) error {
	if err == nil {
		return nil
	}
	if text := u.mask.Text(err.Error()); text != err.Error() {
		return &maskedError{text, err}
	}
	return err
}

// Catalog implements providerapi.Provider.
func (u *sharedProvider) Catalog() providerapi.Catalog { return u.provider.Catalog() }

func identity(d *providerapi.Diagnostics) *providerapi.Diagnostics { return d }

// ValidateResource implements providerapi.Provider.
func (u *sharedProvider) ValidateResource(ctx context.Context, typeName string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	return ask(u, func() (providerapi.Diagnostics, error) { return u.provider.ValidateResource(ctx, typeName, config) }, identity)
}

// ValidateData implements providerapi.Provider.
func (u *sharedProvider) ValidateData(ctx context.Context, typeName string, config cty.Value) (providerapi.Diagnostics, error) {
	return ask(u, func() (providerapi.Diagnostics, error) { return u.provider.ValidateData(ctx, typeName, config) }, identity)
}

// Upgrade implements providerapi.Provider.
func (u *sharedProvider) Upgrade(ctx context.Context, typeName string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	return ask(u, func() (providerapi.UpgradeAnswer, error) { return u.provider.Upgrade(ctx, typeName, stored) },
		func(a *providerapi.UpgradeAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// Read implements providerapi.Provider.
func (u *sharedProvider) Read(ctx context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	return ask(u, func() (providerapi.ReadAnswer, error) { return u.provider.Read(ctx, request) },
		func(a *providerapi.ReadAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// Plan implements providerapi.Provider.
func (u *sharedProvider) Plan(ctx context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	return ask(u, func() (providerapi.PlanAnswer, error) { return u.provider.Plan(ctx, request) },
		func(a *providerapi.PlanAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// Apply implements providerapi.Provider.
func (u *sharedProvider) Apply(ctx context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	return ask(u, func() (providerapi.ApplyAnswer, error) { return u.provider.Apply(ctx, request) },
		func(a *providerapi.ApplyAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// Import implements providerapi.Provider.
func (u *sharedProvider) Import(ctx context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	return ask(u, func() (providerapi.ImportAnswer, error) { return u.provider.Import(ctx, typeName, id) },
		func(a *providerapi.ImportAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// Move implements providerapi.Provider.
func (u *sharedProvider) Move(ctx context.Context, request providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	return ask(u, func() (providerapi.MoveAnswer, error) { return u.provider.Move(ctx, request) },
		func(a *providerapi.MoveAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}

// ReadData implements providerapi.Provider.
func (u *sharedProvider) ReadData(ctx context.Context, typeName string, config cty.Value) (providerapi.DataAnswer, error) {
	return ask(u, func() (providerapi.DataAnswer, error) { return u.provider.ReadData(ctx, typeName, config) },
		func(a *providerapi.DataAnswer) *providerapi.Diagnostics { return &a.Diagnostics })
}
