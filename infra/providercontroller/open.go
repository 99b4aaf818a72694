package providercontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// freshFor is how long Open assumes a ProviderConfig and its Secrets to be unchanged. An apply
	// opens its providers once for each resource.
	freshFor = 250 * time.Millisecond
	// refusedFor is how long a rejected configuration or a failed start is remembered before it is
	// tried again.
	refusedFor = 10 * time.Second
)

// usable is a Provider that can be opened.
type usable struct {
	pack *installedPackage
	spec v1alpha1.ProviderSpec
	// identity identifies the package and its process settings.
	identity string
}

// Open implements infra.Providers.
func (r *Registry) Open(ctx context.Context, name, namespace, config string) (providerapi.Provider, string, error) {
	return r.open(ctx, name, namespace, config, freshFor)
}

// OpenLatest implements infra.Providers.
func (r *Registry) OpenLatest(ctx context.Context, name, namespace, config string) (providerapi.Provider, string, error) {
	return r.open(ctx, name, namespace, config, 0)
}

// open is Open with another bound for the age of an earlier check.
func (r *Registry) open(ctx context.Context, name, namespace, config string, fresh time.Duration) (providerapi.Provider, string, error) {
	p, err := r.usable(ctx, name)
	if err != nil {
		return nil, "", err
	}
	s, err := r.instances.slot(ctx, slotKey{name, namespace, config})
	if err != nil {
		return nil, "", err
	}
	defer s.unlock()
	now := r.config.Clock.Now()
	if s.current != nil && strings.HasPrefix(s.identity, p.identity) && now.Sub(s.checked) < fresh {
		return s.current, s.revision, nil
	}
	settings, err := r.readSettings(ctx, name, namespace, config)
	if err != nil {
		var openErr *OpenError
		if errors.As(err, &openErr) && openErr.Reason == v1alpha1.ReasonConfigRefused {
			r.instances.drop(s)
		}
		return nil, "", err
	}
	revision := settings.revision()
	of := p.identity + revision
	switch {
	case s.current != nil && s.identity == of:
		s.checked = now
		return s.current, revision, nil
	case s.failed != nil && s.identity == of && now.Sub(s.failedAt) < refusedFor:
		return nil, "", s.failed
	}
	u, err := r.start(ctx, name, p, settings)
	if err != nil {
		var openErr *OpenError
		if ctx.Err() == nil && !(errors.As(err, &openErr) && openErr.Reason == v1alpha1.ReasonNotInstalled) {
			r.instances.drop(s)
			s.identity, s.failed, s.failedAt, s.checked = of, err, now, now
		}
		return nil, "", err
	}
	r.instances.set(s, u)
	s.identity, s.revision, s.checked, s.failed = of, revision, now, nil
	return u, revision, nil
}

// usable waits until the Provider's installation has succeeded or failed.
func (r *Registry) usable(ctx context.Context, name string) (*usable, error) {
	for {
		r.mu.Lock()
		changed := r.entryChanged
		e := r.entries[name]
		switch {
		case e == nil && r.isSynced():
			r.mu.Unlock()
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: Provider %q not found: create it, or reference another one", infra.ErrNotServed, name)}
		case e != nil && e.usable:
			out := &usable{pack: e.pack, spec: e.object.Spec}
			r.mu.Unlock()
			out.identity = identityOf(out)
			return out, nil
		case e != nil && e.failure != nil:
			r.mu.Unlock()
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: Provider %s cannot be used on server %s: %s", providerapi.ErrNotCalled, name, r.config.Server, e.failure.message)}
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-r.synced:
			// The Provider may not exist: then no entry changes any more.
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-r.config.Clock.After(freshFor):
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the installation of Provider %s: %w", name, ctx.Err())
		}
	}
}

// pendingReason returns what usable would wait for, empty if it would not wait.
func (r *Registry) pendingReason(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[name]
	switch {
	case e == nil && !r.isSynced():
		return fmt.Sprintf("Provider %q is not known yet: server %s is starting", name, r.config.Server)
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
	text, err := json.Marshal([]any{u.pack.executable, u.pack.Content, u.spec.Limits, u.spec.Process, u.spec.Containment, u.spec.Files, u.spec.Network})
	if err != nil {
		return err.Error() // it was decoded from JSON
	}
	return string(text)
}

// start starts and configures a provider, or returns the one that has the same configuration.
func (r *Registry) start(ctx context.Context, name string, p *usable, s *settings) (*sharedProvider, error) {
	value, err := s.value(ctx, r, p.pack.catalog)
	if err != nil {
		return nil, err
	}
	key, err := r.instances.configKey(name+"\n"+p.identity, value)
	if err != nil {
		return nil, refusedf("%s: encode its configuration: %w", s.where(), err)
	}
	return r.instances.share(ctx, key, func() (*sharedProvider, error) { return r.startNew(ctx, name, p, s, value) })
}

func (r *Registry) startNew(ctx context.Context, name string, p *usable, s *settings, value cty.Value) (*sharedProvider, error) {
	if p.pack.development == nil {
		if err := r.store.Verify(ctx, packages.Digest(p.pack.Content)); err != nil {
			if ctx.Err() == nil {
				r.reinstall(name, p.pack)
			}
			return nil, &OpenError{v1alpha1.ReasonNotInstalled, fmt.Errorf("%w: the package of Provider %s was modified and is being reinstalled: %w", providerapi.ErrNotCalled, name, err)}
		}
	}
	mask := schema.NewMask(value)
	plain, _ := value.UnmarkDeep()
	instance, diagnostics, err := r.host.Open(ctx, r.binary(name, &p.spec, p.pack), plugin.Settings{
		Catalog: p.pack.catalog, Config: plain, Limits: limitsOf(&p.spec.Limits), Env: environment(&p.spec),
		Idle: p.spec.Process.IdleTimeout.Duration, RecycleAfter: int(p.spec.Process.CallsBeforeRestart),
	})
	r.config.Metrics.started(name, diagnostics, err)
	switch {
	case err != nil:
		return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, &maskedError{mask.Text(err.Error()), err}}
	case diagnostics.Failed():
		return nil, refusal(s, mask.Diagnostics(diagnostics))
	}
	u := newSharedProvider(r.config.Metrics.measured(name, instance, r.config.Clock), mask, r.config.Clock)
	u.warned = strings.Join(sentences(mask.Diagnostics(diagnostics), true), "; ")
	return u, nil
}

// sentences formats a provider's diagnostics, either the warnings or the errors.
func sentences(diagnostics providerapi.Diagnostics, warnings bool) (out []string) {
	for _, d := range diagnostics {
		if d.Warning != warnings {
			continue
		}
		text := d.Summary
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		out = append(out, truncate(text))
	}
	return out
}

// refusal returns the error of a configuration that the provider rejects.
func refusal(s *settings, diagnostics providerapi.Diagnostics) error {
	words := sentences(diagnostics, false)
	if !s.present {
		return refusedf("%s not found, but the provider needs a configuration: create it; the provider reports: %s", s.where(), strings.Join(words, "; "))
	}
	return refusedf("the provider rejected %s: %s", s.where(), strings.Join(words, "; "))
}

func limitsOf(l *v1alpha1.ProviderLimits) plugin.Limits {
	return plugin.Limits{
		Parallel: int(l.Parallelism), PerSecond: float64(l.RequestsPerMinute) / 60,
		CallTimeout: l.CallTimeout.Duration, ApplyTimeout: l.ApplyTimeout.Duration,
	}
}

// reinstall schedules the installation of a package that was found modified.
func (r *Registry) reinstall(name string, of *installedPackage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[name]; e != nil && e.pack == of {
		e.usable, e.attempted = false, ""
		r.queue.Add(name)
		r.notifyWaiters()
	}
}
