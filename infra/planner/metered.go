package planner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// meteredProvider counts provider calls and their duration.
type meteredProvider struct {
	providerapi.Provider
	clock       clock.PassiveClock
	calls, took *atomic.Int64
	onCall      func(calls int64) // may be nil
}

func (m *meteredProvider) start() func() {
	began := m.clock.Now()
	return func() {
		calls := m.calls.Add(1)
		if m.onCall != nil {
			m.onCall(calls)
		}
		m.took.Add(int64(m.clock.Since(began) / time.Nanosecond))
	}
}

func (m *meteredProvider) ValidateResource(ctx context.Context, typeName string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	defer m.start()()
	return m.Provider.ValidateResource(ctx, typeName, config)
}

func (m *meteredProvider) ValidateData(ctx context.Context, typeName string, config cty.Value) (providerapi.Diagnostics, error) {
	defer m.start()()
	return m.Provider.ValidateData(ctx, typeName, config)
}

func (m *meteredProvider) Upgrade(ctx context.Context, typeName string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	defer m.start()()
	return m.Provider.Upgrade(ctx, typeName, stored)
}

func (m *meteredProvider) Read(ctx context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	defer m.start()()
	return m.Provider.Read(ctx, request)
}

func (m *meteredProvider) Plan(ctx context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	defer m.start()()
	return m.Provider.Plan(ctx, request)
}

func (m *meteredProvider) Import(ctx context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	defer m.start()()
	return m.Provider.Import(ctx, typeName, id)
}

func (m *meteredProvider) Move(ctx context.Context, request providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	defer m.start()()
	return m.Provider.Move(ctx, request)
}

func (m *meteredProvider) ReadData(ctx context.Context, typeName string, config cty.Value) (providerapi.DataAnswer, error) {
	defer m.start()()
	return m.Provider.ReadData(ctx, typeName, config)
}
