package providercontroller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// fakeInstance answers every call with the same diagnostics and error.
type fakeInstance struct {
	instance
	diagnostics providerapi.Diagnostics
	err         error
	during      func()
}

func (f fakeInstance) ValidateResource(context.Context, string, *providerapi.Configuration) (providerapi.Diagnostics, error) {
	f.during()
	return f.diagnostics, f.err
}

func (f fakeInstance) ValidateData(context.Context, string, cty.Value) (providerapi.Diagnostics, error) {
	return f.diagnostics, f.err
}

func (f fakeInstance) Upgrade(context.Context, string, providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	return providerapi.UpgradeAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Read(context.Context, providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	return providerapi.ReadAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Plan(context.Context, providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	return providerapi.PlanAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Apply(context.Context, providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	return providerapi.ApplyAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Import(context.Context, string, string) (providerapi.ImportAnswer, error) {
	return providerapi.ImportAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) ReadData(context.Context, string, cty.Value) (providerapi.DataAnswer, error) {
	return providerapi.DataAnswer{Diagnostics: f.diagnostics}, f.err
}

func TestCallsAreCounted(t *testing.T) {
	ctx := t.Context()
	for want, fake := range map[string]fakeInstance{
		resultOK:          {diagnostics: providerapi.Diagnostics{{Warning: true, Summary: "old"}}},
		resultError:       {diagnostics: providerapi.Diagnostics{{Summary: "no such size"}}},
		resultUnavailable: {err: fmt.Errorf("it died: %w", providerapi.ErrUnavailable)},
		resultNotCalled:   {err: fmt.Errorf("it does not start: %w", providerapi.ErrNotCalled)},
		resultInvalid:     {err: errors.New("the answer has no value")},
	} {
		m := NewMetrics()
		inFlight := func() float64 { return testutil.ToFloat64(m.inFlight.WithLabelValues("demo")) }
		fake.during = func() {
			if inFlight() != 1 {
				t.Errorf("%v calls in flight during a call", inFlight())
			}
		}
		i := m.measured("demo", fake, clock.RealClock{})
		calls := map[string]func() error{
			"ValidateResource": func() error { _, err := i.ValidateResource(ctx, "", nil); return err },
			"ValidateData":     func() error { _, err := i.ValidateData(ctx, "", cty.NilVal); return err },
			"Upgrade":          func() error { _, err := i.Upgrade(ctx, "", providerapi.StoredState{}); return err },
			"Read":             func() error { _, err := i.Read(ctx, providerapi.ReadRequest{}); return err },
			"Plan":             func() error { _, err := i.Plan(ctx, providerapi.PlanRequest{}); return err },
			"Apply":            func() error { _, err := i.Apply(ctx, providerapi.ApplyRequest{}); return err },
			"Import":           func() error { _, err := i.Import(ctx, "", ""); return err },
			"ReadData":         func() error { _, err := i.ReadData(ctx, "", cty.NilVal); return err },
		}
		for method, call := range calls {
			if err := call(); !errors.Is(err, fake.err) {
				t.Errorf("%s returned %v", method, err)
			}
			if n := testutil.ToFloat64(m.calls.WithLabelValues("demo", method, want)); n != 1 {
				t.Errorf("%s with result %s was counted %v times", method, want, n)
			}
		}
		if n := testutil.CollectAndCount(m.seconds); n != len(calls) || inFlight() != 0 {
			t.Errorf("durations of %d methods, %v calls in flight", n, inFlight())
		}
		m.started("demo", fake.diagnostics, fake.err)
		if n := testutil.ToFloat64(m.starts.WithLabelValues("demo", want)); n != 1 {
			t.Errorf("a start with result %s was counted %v times", want, n)
		}
		m.forget("demo")
		if n := testutil.CollectAndCount(m); n != 0 {
			t.Errorf("%d series of a Provider that is gone", n)
		}
	}
}
