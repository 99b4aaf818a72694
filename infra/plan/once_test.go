package plan

import (
	"context"
	"fmt"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// encoding is a provider that encodes what it is told.
type encoding struct {
	quiet
	t    *testing.T
	said []string // by call
	made int
}

func (e *encoding) told(call string, config *contract.Configuration) {
	text, err := config.Encoded(func(v cty.Value) ([]byte, error) {
		e.made++
		return []byte(v.GetAttr("name").AsString()), nil
	})
	if err != nil {
		e.t.Error(err)
	}
	e.said = append(e.said, fmt.Sprintf("%s %s", call, text))
}

func (e *encoding) ValidateResource(_ context.Context, _ string, config *contract.Configuration) (contract.Diagnostics, error) {
	e.told("validate", config)
	return nil, nil
}

func (e *encoding) Plan(ctx context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	e.told("plan", request.Config)
	return e.quiet.Plan(ctx, request)
}

// What is written is encoded once for both calls; where the plan is of something else, that is what it is told.
func TestWhatIsWrittenIsEncodedOnce(t *testing.T) {
	for _, c := range []struct {
		what      string
		lifecycle Lifecycle
		said      string
		made      int
	}{
		{"as it is written", Lifecycle{}, "[validate b plan b]", 1},
		{"with a change that is ignored", Lifecycle{IgnoreChanges: []cty.Path{cty.GetAttrPath("name")}}, "[validate b plan a]", 2},
	} {
		schema := thing()
		provider := &encoding{quiet: quiet{fake{schema: schema}}, t: t}
		_, err := Decide(t.Context(), Input{
			Address: Address{Type: "demo_thing", Name: "main"}, Schema: schema, Provider: provider, Lifecycle: c.lifecycle,
			Prior:  Prior{State: contract.State{Value: value(t, &schema.Block, `{"name":"a","id":"i","size":5,"token":"t"}`)}},
			Config: value(t, &schema.Block, `{"name":"b"}`),
		})
		if said := fmt.Sprint(provider.said); err != nil || said != c.said || provider.made != c.made {
			t.Errorf("%s: %v, %s, encoded %d times", c.what, err, said, provider.made)
		}
	}
}
