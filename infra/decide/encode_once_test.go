package decide

import (
	"context"
	"fmt"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// encodingProvider encodes the configurations that it gets.
type encodingProvider struct {
	noOpProvider
	t         *testing.T
	calls     []string // the configuration of each call
	encodings int
}

func (e *encodingProvider) encode(call string, config *providerapi.Configuration) {
	text, err := config.Encoded(func(v cty.Value) ([]byte, error) {
		e.encodings++
		return []byte(v.GetAttr("name").AsString()), nil
	})
	if err != nil {
		e.t.Error(err)
	}
	e.calls = append(e.calls, fmt.Sprintf("%s %s", call, text))
}

func (e *encodingProvider) ValidateResource(_ context.Context, _ string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	e.encode("validate", config)
	return nil, nil
}

func (e *encodingProvider) Plan(ctx context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	e.encode("plan", request.Config)
	return e.noOpProvider.Plan(ctx, request)
}

// The configuration is encoded once for validation and plan. If an ignored change makes the planned
// configuration differ, that one is encoded, too.
func TestConfigurationIsEncodedOnce(t *testing.T) {
	for _, c := range []struct {
		what      string
		lifecycle Lifecycle
		calls     string
		encodings int
	}{
		{"unmodified", Lifecycle{}, "[validate b plan b]", 1},
		{"with an ignored change", Lifecycle{IgnoreChanges: []cty.Path{cty.GetAttrPath("name")}}, "[validate b plan a]", 2},
	} {
		schema := testSchema()
		provider := &encodingProvider{noOpProvider: noOpProvider{fake{schema: schema}}, t: t}
		_, err := Decide(t.Context(), Input{
			Address: change.Address{Type: "demo_thing", Name: "main"}, Schema: schema, Provider: provider, Lifecycle: c.lifecycle,
			Prior:  Prior{State: providerapi.State{Value: value(t, &schema.Block, `{"name":"a","id":"i","size":5,"token":"t"}`)}},
			Config: value(t, &schema.Block, `{"name":"b"}`),
		})
		if got := fmt.Sprint(provider.calls); err != nil || got != c.calls || provider.encodings != c.encodings {
			t.Errorf("%s: %v, %s, encoded %d times", c.what, err, got, provider.encodings)
		}
	}
}
