package providers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/contract"
)

// fakeInstance answers every call with the same diagnostics and error.
type fakeInstance struct {
	instance
	diagnostics contract.Diagnostics
	err         error
	during      func()
}

func (f fakeInstance) ValidateResource(context.Context, string, *contract.Configuration) (contract.Diagnostics, error) {
	f.during()
	return f.diagnostics, f.err
}

func (f fakeInstance) ValidateData(context.Context, string, cty.Value) (contract.Diagnostics, error) {
	return f.diagnostics, f.err
}

func (f fakeInstance) Upgrade(context.Context, string, contract.StoredState) (contract.UpgradeAnswer, error) {
	return contract.UpgradeAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Read(context.Context, contract.ReadRequest) (contract.ReadAnswer, error) {
	return contract.ReadAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Plan(context.Context, contract.PlanRequest) (contract.PlanAnswer, error) {
	return contract.PlanAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Apply(context.Context, contract.ApplyRequest) (contract.ApplyAnswer, error) {
	return contract.ApplyAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) Import(context.Context, string, string) (contract.ImportAnswer, error) {
	return contract.ImportAnswer{Diagnostics: f.diagnostics}, f.err
}

func (f fakeInstance) ReadData(context.Context, string, cty.Value) (contract.DataAnswer, error) {
	return contract.DataAnswer{Diagnostics: f.diagnostics}, f.err
}

func TestCallsAreCounted(t *testing.T) {
	ctx := t.Context()
	for want, fake := range map[string]fakeInstance{
		resultOK:          {diagnostics: contract.Diagnostics{{Warning: true, Summary: "old"}}},
		resultError:       {diagnostics: contract.Diagnostics{{Summary: "no such size"}}},
		resultUnavailable: {err: fmt.Errorf("it died: %w", contract.ErrUnavailable)},
		resultNotCalled:   {err: fmt.Errorf("it does not start: %w", contract.ErrNotCalled)},
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
			"Upgrade":          func() error { _, err := i.Upgrade(ctx, "", contract.StoredState{}); return err },
			"Read":             func() error { _, err := i.Read(ctx, contract.ReadRequest{}); return err },
			"Plan":             func() error { _, err := i.Plan(ctx, contract.PlanRequest{}); return err },
			"Apply":            func() error { _, err := i.Apply(ctx, contract.ApplyRequest{}); return err },
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
