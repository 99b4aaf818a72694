package decide

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/render"
)

const rounds = 1000

// TestProposedNewIsStable checks that an unchanged configuration plans no change, whatever the
// provider filled in.
func TestProposedNewIsStable(t *testing.T) {
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		r.simple = true
		block := r.block(2, false)
		config := r.config(providerapi.BlockLevel(&block), 0)
		prior := r.applied(providerapi.BlockLevel(&block), config)
		if got := ProposedNew(&block, prior, config); !got.RawEquals(prior) {
			t.Fatalf("seed %d: config\n%#v\nprior\n%#v\ngot\n%#v", seed, config, prior, got)
		}
	}
}

// TestProposedNewWithoutPrior checks that without prior state the proposed state is the
// configuration. The shortcut must agree with the rules for each attribute.
func TestProposedNewWithoutPrior(t *testing.T) {
	shortened := 0
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		block := r.block(2, false)
		config := r.config(providerapi.BlockLevel(&block), 10)
		null := cty.NullVal(block.ImpliedType())
		want := proposedObject(providerapi.BlockLevel(&block), block.Empty(), config)
		if got := ProposedNew(&block, null, config); !got.RawEquals(want) {
			t.Fatalf("seed %d: config\n%#v\ngot\n%#v, want\n%#v", seed, config, got, want)
		}
		if isConfig(&block, null, config) {
			shortened++
			if !want.RawEquals(config) {
				t.Fatalf("seed %d: config\n%#v\ngot\n%#v", seed, config, want)
			}
		}
	}
	if shortened < rounds/4 {
		t.Errorf("only %d of %d took the shortcut", shortened, rounds)
	}
	// A group is never null, even if it is configured as null.
	group := providerapi.NestedBlock{Name: "group", Nesting: providerapi.NestingGroup, Block: providerapi.Block{Attributes: []providerapi.Attribute{{Name: "a", Type: cty.String, Optional: true}}}}
	within := providerapi.Block{Blocks: []providerapi.NestedBlock{group}}
	block := providerapi.Block{Blocks: []providerapi.NestedBlock{group, {Name: "one", Nesting: providerapi.NestingSingle, Block: within}}}
	none := map[string]cty.Value{"group": cty.NullVal(group.ImpliedType())}
	some := map[string]cty.Value{"group": group.Absent()}
	config := cty.ObjectVal(map[string]cty.Value{"group": none["group"], "one": cty.ObjectVal(none)})
	want := cty.ObjectVal(map[string]cty.Value{"group": some["group"], "one": cty.ObjectVal(some)})
	if got := ProposedNew(&block, cty.NullVal(block.ImpliedType()), config); !got.RawEquals(want) {
		t.Errorf("null groups: got\n%#v, want\n%#v", got, want)
	}
	block.Blocks = block.Blocks[1:]
	config, want = cty.ObjectVal(map[string]cty.Value{"one": cty.ObjectVal(none)}), cty.ObjectVal(map[string]cty.Value{"one": cty.ObjectVal(some)})
	if got := ProposedNew(&block, cty.NullVal(block.ImpliedType()), config); !got.RawEquals(want) {
		t.Errorf("null group within a block: got\n%#v, want\n%#v", got, want)
	}
}

// TestProposedNewIsValid checks that the proposed state has the right type, contains the
// configuration, and is a valid plan, for any prior state.
func TestProposedNewIsValid(t *testing.T) {
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		schema := &providerapi.Schema{Block: r.block(2, false)}
		block := &schema.Block
		config := r.config(providerapi.BlockLevel(block), 10)
		prior := r.prior(block, config)
		proposed := ProposedNew(block, prior, config)
		if problems := conformanceProblems(schema, proposed); len(problems) > 0 {
			t.Fatalf("seed %d: %v", seed, problems)
		}
		planned := markComputed(providerapi.BlockLevel(block), proposed, config)
		if problems := assertPlanValid(block, prior, config, planned); len(problems) > 0 {
			t.Fatalf("seed %d: the proposed state is not a valid plan: %v", seed, problems)
		}
		if problems := conformanceProblems(schema, PlannedDataSource(block, config)); len(problems) > 0 {
			t.Fatalf("seed %d: as a data source: %v", seed, problems)
		}
		if once := normalizeBlocks(block, r.changed(prior, 0)); !normalizeBlocks(block, once).RawEquals(once) {
			t.Fatalf("seed %d: normalizeBlocks is not idempotent", seed)
		}
	}
}

// prior returns state of the same configuration, of a similar or of another one, or none.
func (r random) prior(block *providerapi.Block, config cty.Value) cty.Value {
	l := providerapi.BlockLevel(block)
	switch r.IntN(4) {
	case 0:
		return cty.NullVal(block.ImpliedType())
	case 1:
		return r.applied(l, r.config(l, 0))
	case 2:
		return r.applied(l, r.known(config))
	}
	return r.applied(l, config)
}

// TestAssertCompatible checks that filled-in unknown values pass, and that a changed known value is
// found.
func TestAssertCompatible(t *testing.T) {
	found := 0
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		block := r.block(2, false)
		config := r.config(providerapi.BlockLevel(&block), 10)
		planned := markComputed(providerapi.BlockLevel(&block), ProposedNew(&block, cty.NullVal(block.ImpliedType()), config), config)
		known := r.known(planned)
		if problems := assertCompatible(&block, planned, known); len(problems) > 0 {
			t.Fatalf("seed %d: %v:\n%#v\n%#v", seed, problems, planned, known)
		}
		other := r.changed(known, 0)
		if other.RawEquals(known) || withoutBlocks(providerapi.BlockLevel(&block), known) || withoutBlocks(providerapi.BlockLevel(&block), other) {
			continue
		}
		found++
		if len(assertCompatible(&block, known, other)) == 0 {
			t.Fatalf("seed %d: a change went unnoticed:\n%#v\n%#v", seed, known, other)
		}
	}
	if found < rounds/4 {
		t.Fatalf("only %d changes were tested", found)
	}
}

// withoutBlocks reports whether a collection of blocks is null. assertCompatible does not look into
// such values, and no state has them.
func withoutBlocks(l providerapi.Level, v cty.Value) bool {
	if v.IsNull() {
		return false
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		of, single := v.GetAttr(n.Name), n.Nesting == providerapi.NestingSingle || n.Nesting == providerapi.NestingGroup
		switch {
		case of.IsNull():
			if !single {
				return true
			}
		case single:
			if withoutBlocks(providerapi.BlockLevel(&n.Block), of) {
				return true
			}
		default:
			for it := of.ElementIterator(); it.Next(); {
				if _, one := it.Element(); withoutBlocks(providerapi.BlockLevel(&n.Block), one) {
					return true
				}
			}
		}
	}
	return false
}

// TestRandomDecisions checks that, with a good provider, random decisions can be stored, read,
// rendered and applied, and that the next plan is a no-op.
func TestRandomDecisions(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		schema := &providerapi.Schema{Block: r.block(2, false)}
		provider := &fake{schema: schema}
		provider.apply = func(request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
			return providerapi.ApplyAnswer{State: providerapi.State{Value: r.known(request.Planned)}}, nil
		}
		provider.plan = func(request providerapi.PlanRequest) providerapi.PlanAnswer {
			return providerapi.PlanAnswer{Planned: markComputed(providerapi.BlockLevel(&schema.Block), request.Proposed, request.Config.Value)}
		}
		config := r.config(providerapi.BlockLevel(&schema.Block), 0)
		in := Input{Address: change.Address{Type: "t", Name: "n"}, Schema: schema, Provider: provider, Config: config}
		in.Prior.State.Value = r.prior(&schema.Block, config)
		in.Replace = r.chance(20)
		d, err := Decide(ctx, in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		decoded := encodeAndDecode(t, seed, d, schema)
		outcome := executeSealed(t, seed, d, schema, provider, config)
		if decoded.Action == change.Replace {
			continue // the fake has created another resource
		}
		// Unknown values got random values, so elements of a set may have merged and match differently.
		in.Prior.State, in.Replace = outcome.State, false
		again, err := Decide(ctx, in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if wanted := ProposedNew(&schema.Block, outcome.State.Value, config); wanted.RawEquals(outcome.State.Value) && wanted.RawEquals(again.After) != (again.Action == change.NoOp) {
			t.Fatalf("seed %d: then %s", seed, again.Action)
		}
	}
}

func encodeAndDecode(t *testing.T, seed uint64, d *Decision, schema *providerapi.Schema) *change.Change {
	t.Helper()
	show := ChangeOptions{Salt: []byte("0123456789abcdef")}
	c, err := d.Change(schema, show)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	text, err := c.Encode()
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	var read change.Change
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if again, err := read.Encode(); err != nil || string(again) != string(text) {
		t.Fatalf("seed %d: %v: not canonical:\n%s\n%s", seed, err, text, again)
	}
	if twice, err := d.Change(schema, show); err != nil || !sameDigest(t, twice, c) {
		t.Fatalf("seed %d: the same decision gives two changes", seed)
	}
	for _, v := range []*change.Value{read.Before, read.After} {
		n, err := v.Node(read.Shapes)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if back := n.Value(); v != nil && (string(back.JSON) != string(v.JSON) || len(back.Unknown) != len(v.Unknown) || len(back.Sensitive) != len(v.Sensitive)) {
			t.Fatalf("seed %d: a value differs after decoding:\n%s\n%s", seed, v.JSON, back.JSON)
		}
	}
	var out strings.Builder
	if err := (render.Renderer{}).Change(&out, &read); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return &read
}

func sameDigest(t *testing.T, a, b *change.Change) bool {
	t.Helper()
	x, err := a.Digest()
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return x == y
}

func executeSealed(t *testing.T, seed uint64, d *Decision, schema *providerapi.Schema, provider providerapi.Provider, config cty.Value) *Outcome {
	t.Helper()
	text, err := d.Seal(schema)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	opened, err := Open(text, schema)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if !opened.After.RawEquals(d.After) || !opened.Before.Value.RawEquals(d.Before.Value) {
		t.Fatalf("seed %d: the opened decision differs from the sealed one", seed)
	}
	run := Execution{Planned: opened, Schema: schema, Provider: provider, Config: config}
	if d.Action == change.Replace {
		run.Step = DestroyOld
		if _, err := Execute(context.Background(), run); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		run.Step = CreateNew
	}
	outcome, err := Execute(context.Background(), run)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return outcome
}
