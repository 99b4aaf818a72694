package providers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/install"
	"github.com/atoll-dev/atoll/infra/provider"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// freshFor is how long a ProviderConfig and its Secrets are taken to be what they were. A plan asks
	// for its providers once for each resource.
	freshFor = 250 * time.Millisecond
	// refusedFor is how long a provider that refused a configuration, or did not start, is not asked again with the same.
	refusedFor = 10 * time.Second
)

// usable is a Provider that can be opened.
type usable struct {
	pack *pack
	spec v1alpha1.ProviderSpec
	// identity stands for the package and how it is run.
	identity string
}

// Open implements infra.Providers.
func (r *Registry) Open(ctx context.Context, name, namespace, config string) (contract.Provider, string, error) {
	return r.open(ctx, name, namespace, config, freshFor)
}

// open is Open with what was looked at so long ago taken to be as it was.
func (r *Registry) open(ctx context.Context, name, namespace, config string, fresh time.Duration) (contract.Provider, string, error) {
	p, err := r.usable(ctx, name)
	if err != nil {
		return nil, "", err
	}
	s, err := r.opened.slot(ctx, slotKey{name, namespace, config})
	if err != nil {
		return nil, "", err
	}
	defer s.giveBack()
	now := r.config.Clock.Now()
	if s.use != nil && strings.HasPrefix(s.of, p.identity) && now.Sub(s.checked) < fresh {
		return s.use, s.revision, nil
	}
	settings, err := r.readSettings(ctx, name, namespace, config)
	if err != nil {
		var gone *OpenError
		if errors.As(err, &gone) && gone.Reason == v1alpha1.ReasonConfigRefused {
			r.opened.drop(s)
		}
		return nil, "", err
	}
	revision := settings.revision()
	of := p.identity + revision
	switch {
	case s.use != nil && s.of == of:
		s.checked = now
		return s.use, revision, nil
	case s.failed != nil && s.of == of && now.Sub(s.failedAt) < refusedFor:
		return nil, "", s.failed
	}
	u, err := r.start(ctx, name, p, settings)
	if err != nil {
		var because *OpenError
		if ctx.Err() == nil && !(errors.As(err, &because) && because.Reason == v1alpha1.ReasonNotInstalled) {
			r.opened.drop(s)
			s.of, s.failed, s.failedAt, s.checked = of, err, now, now
		}
		return nil, "", err
	}
	r.opened.take(s, u)
	s.of, s.revision, s.checked, s.failed = of, revision, now, nil
	return u, revision, nil
}

// usable waits until it is known whether a Provider can be used.
func (r *Registry) usable(ctx context.Context, name string) (*usable, error) {
	for {
		r.mu.Lock()
		moved := r.moved
		e := r.entries[name]
		switch {
		case e == nil && r.isSynced():
			r.mu.Unlock()
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: there is no Provider %q: make one, or name another", infra.ErrNotServed, name)}
		case e != nil && e.usable:
			out := &usable{pack: e.pack, spec: e.object.Spec}
			r.mu.Unlock()
			out.identity = identityOf(out)
			return out, nil
		case e != nil && e.failure != nil:
			r.mu.Unlock()
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: Provider %s cannot be used on %s: %s", contract.ErrNotAsked, name, r.config.Server, e.failure.message)}
		}
		r.mu.Unlock()
		select {
		case <-moved:
		case <-r.synced:
			// There may be no such Provider: then nothing moves any more.
			select {
			case <-moved:
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-r.config.Clock.After(freshFor):
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("Provider %s is not installed yet: %w", name, ctx.Err())
		}
	}
}

// awaited is what usable would wait for; empty if it would not.
func (r *Registry) awaited(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[name]
	switch {
	case e == nil && !r.isSynced():
		return fmt.Sprintf("whether there is a Provider %q is not known yet: %s has just begun to look", name, r.config.Server)
	case e != nil && !e.usable && e.failure == nil:
		return fmt.Sprintf("Provider %s is being installed", name)
	}
	return ""
}

func (r *Registry) isSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

func identityOf(u *usable) string {
	text, err := json.Marshal([]any{u.pack.executable, u.pack.Content, u.spec.Limits, u.spec.Process})
	if err != nil {
		return err.Error() // it came of JSON
	}
	return string(text)
}

// start starts and configures a provider.
func (r *Registry) start(ctx context.Context, name string, p *usable, s *settings) (*use, error) {
	value, err := s.value(ctx, r, p.pack.catalog)
	if err != nil {
		return nil, err
	}
	if p.pack.development == nil {
		if err := r.store.Verify(ctx, install.Digest(p.pack.Content)); err != nil {
			if ctx.Err() == nil {
				r.mistrust(name, p.pack)
			}
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: the package of Provider %s is no longer what it was, and is installed anew: %w", contract.ErrNotAsked, name, err)}
		}
	}
	mask := schema.NewMask(value)
	plain, _ := value.UnmarkDeep()
	instance, said, err := r.host.Open(ctx, provider.Binary{Name: name, Path: p.pack.executable}, provider.Settings{
		Catalog: p.pack.catalog, Config: plain, Limits: limitsOf(&p.spec.Limits), Env: environment(&p.spec),
		Idle: p.spec.Process.IdleTimeout.Duration, RecycleAfter: int(p.spec.Process.CallsBeforeRestart),
	})
	switch {
	case err != nil:
		return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, &maskedError{mask.Text(err.Error()), err}}
	case said.Failed():
		return nil, refusal(s, mask.Diagnostics(said))
	}
	u := newUse(instance, mask, r.config.Clock)
	u.warned = strings.Join(sentences(mask.Diagnostics(said), true), "; ")
	return u, nil
}

// sentences are what a provider says, its warnings or what is more than that.
func sentences(said contract.Diagnostics, warnings bool) (out []string) {
	for _, d := range said {
		if d.Warning != warnings {
			continue
		}
		text := d.Summary
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		out = append(out, shortened(text))
	}
	return out
}

// refusal is what a provider says to a configuration that it does not take.
func refusal(s *settings, said contract.Diagnostics) error {
	words := sentences(said, false)
	if !s.present {
		return refusedf("the provider does not do without a configuration, and there is no %s: make one; it says: %s", s.where(), strings.Join(words, "; "))
	}
	return refusedf("the provider refuses %s: %s", s.where(), strings.Join(words, "; "))
}

func limitsOf(l *v1alpha1.ProviderLimits) provider.Limits {
	return provider.Limits{
		Parallel: int(l.Parallelism), PerSecond: float64(l.RequestsPerMinute) / 60,
		CallTimeout: l.CallTimeout.Duration, ApplyTimeout: l.ApplyTimeout.Duration,
	}
}

// mistrust has a package installed anew that was found changed.
func (r *Registry) mistrust(name string, of *pack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[name]; e != nil && e.pack == of {
		e.usable, e.tried = false, ""
		r.queue.Add(name)
		r.move()
	}
}
