package providercontroller

import (
	"context"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

var _ infra.Functions = (*Registry)(nil)

// CallFunction implements infra.Functions. It uses a process without a configuration, which all namespaces
// share: functions compute from their arguments alone.
func (r *Registry) CallFunction(ctx context.Context, provider, function string, arguments []cty.Value) (cty.Value, error) {
	p, err := r.usable(ctx, provider)
	if err != nil {
		return cty.NilVal, err
	}
	if _, err := p.pack.catalog.Function(function); err != nil {
		return cty.NilVal, r.noFunction(provider, function, p.pack.catalog.Functions())
	}
	u, err := r.openFunctions(ctx, provider, p)
	if err != nil {
		return cty.NilVal, err
	}
	if err := u.begin(); err != nil {
		return cty.NilVal, err
	}
	defer u.end()
	functions, ok := u.provider.(providerapi.Functions)
	if !ok {
		return cty.NilVal, fmt.Errorf("Provider %s has no functions", provider)
	}
	return functions.CallFunction(ctx, function, arguments)
}

func (r *Registry) noFunction(provider, function string, known []string) error {
	if len(known) == 0 {
		return fmt.Errorf("Provider %s has no functions: correct the name of the Provider", provider)
	}
	if len(known) > 20 {
		known = append(known[:20:20], "…")
	}
	return fmt.Errorf("Provider %s has no function %q: use one of %s", provider, function, strings.Join(known, ", "))
}

// openFunctions returns the process of a Provider that has no configuration.
func (r *Registry) openFunctions(ctx context.Context, name string, p *usable) (*sharedProvider, error) {
	s, err := r.instances.slot(ctx, slotKey{provider: name}) // a ProviderConfig always has a namespace
	if err != nil {
		return nil, err
	}
	defer s.unlock()
	now := r.config.Clock.Now()
	if s.checked = now; s.current != nil && s.identity == p.identity {
		return s.current, nil
	}
	u, err := r.instances.share(ctx, "functions\n"+name+"\n"+p.identity, func() (*sharedProvider, error) { return r.startFunctions(ctx, name, p) })
	if err != nil {
		return nil, err
	}
	r.instances.set(s, u)
	s.identity = p.identity
	return u, nil
}

func (r *Registry) startFunctions(ctx context.Context, name string, p *usable) (*sharedProvider, error) {
	if p.pack.development == nil {
		if err := r.store.Verify(ctx, packages.Digest(p.pack.Content)); err != nil {
			if ctx.Err() == nil {
				r.reinstall(name, p.pack)
			}
			return nil, fmt.Errorf("%w: the package of Provider %s was modified and is being reinstalled: %w", providerapi.ErrNotCalled, name, err)
		}
	}
	instance, err := r.host.OpenFunctions(ctx, plugin.Binary{Name: name, Path: p.pack.executable}, plugin.Settings{
		Catalog: p.pack.catalog, Limits: limitsOf(&p.spec.Limits), Env: environment(&p.spec),
		Idle: p.spec.Process.IdleTimeout.Duration, RecycleAfter: int(p.spec.Process.CallsBeforeRestart),
	})
	if err != nil {
		return nil, err
	}
	return newSharedProvider(instance, schema.Mask{}, r.config.Clock), nil
}
