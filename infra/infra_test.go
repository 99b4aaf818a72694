package infra

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/schema"
)

// TestStateNamesAreUnique checks that a state has the same name with and without its object, and
// that similar type names of a provider give different names.
func TestStateNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, n := range schema.Names([]string{"aws_policy", "aws_data_ami", "aws_endpoint", "aws_endpoints", "awsbeta_policy", "a_b_1", "a_b1"}, []string{"aws_ami", "aws_subnet", "aws_subnets"}) {
		kind := &ServedKind{Kind: schema.Kind{Name: n, Group: schema.Group("aws")}, Provider: "aws"}
		left := &State{Spec: v1alpha1.ResourceStateSpec{Object: v1alpha1.StateOwner{Group: kind.Group, Kind: n.Kind, Name: "main"}}}
		name := left.Name()
		if of := kind.StateName("main"); of != name {
			t.Errorf("the state of a %s has the name %s without its object, and %s with it", n.Type, of, name)
		}
		if other := seen[name]; other != "" {
			t.Errorf("the states of %s and %s are both called %s", other, n.Type, name)
		}
		seen[name] = n.Type
	}
}

func TestCheckConfigured(t *testing.T) {
	made := func(configured bool) *State {
		return &State{Ref: expr.Ref{Namespace: "shop", Type: "role", Name: "a"}, Spec: v1alpha1.ResourceStateSpec{ProviderConfig: "postgresql", Configured: configured}}
	}
	for _, tt := range []struct {
		name     string
		state    *State
		revision string
		wrong    bool
	}{
		{"no state", nil, Unconfigured, false},
		{"never configured", made(false), Unconfigured, false},
		{"still configured", made(true), "abc", false},
		{"configuration missing", made(true), Unconfigured, true},
	} {
		err := CheckConfigured(tt.state, tt.revision)
		if (err != nil) != tt.wrong || err != nil && !strings.Contains(err.Error(), `ProviderConfig "postgresql" in namespace "shop"`) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
