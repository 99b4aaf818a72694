package plan

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

const rounds = 1000

// TestProposedOfTheSameIsTheSame: whoever changes nothing plans nothing, whatever the provider filled in.
func TestProposedOfTheSameIsTheSame(t *testing.T) {
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		r.tame = true
		block := r.block(2, false)
		config := r.config(blockLevel(&block), 0)
		prior := r.applied(blockLevel(&block), config)
		if got := Proposed(&block, prior, config); !got.RawEquals(prior) {
			t.Fatalf("seed %d: of\n%#v\nand\n%#v\ncame\n%#v", seed, config, prior, got)
		}
	}
}

// TestProposedOfNothing: where nothing was, what is proposed is what is written, as it is by the rules that look at
// each attribute.
func TestProposedOfNothing(t *testing.T) {
	shortened := 0
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		block := r.block(2, false)
		config := r.config(blockLevel(&block), 10)
		null := cty.NullVal(block.ImpliedType())
		want := proposedObject(blockLevel(&block), block.Empty(), config)
		if got := Proposed(&block, null, config); !got.RawEquals(want) {
			t.Fatalf("seed %d: of\n%#v\ncame\n%#v, want\n%#v", seed, config, got, want)
		}
		if asWritten(&block, null, config) {
			shortened++
			if !want.RawEquals(config) {
				t.Fatalf("seed %d: of\n%#v\ncame\n%#v", seed, config, want)
			}
		}
	}
	if shortened < rounds/4 {
		t.Errorf("only %d of %d could be taken as they are written", shortened, rounds)
	}
	// A group is never null, even if that is how it is written.
	group := contract.NestedBlock{Name: "group", Nesting: contract.NestingGroup, Block: contract.Block{Attributes: []contract.Attribute{{Name: "a", Type: cty.String, Optional: true}}}}
	within := contract.Block{Blocks: []contract.NestedBlock{group}}
	block := contract.Block{Blocks: []contract.NestedBlock{group, {Name: "one", Nesting: contract.NestingSingle, Block: within}}}
	none := map[string]cty.Value{"group": cty.NullVal(group.ImpliedType())}
	some := map[string]cty.Value{"group": group.None()}
	config := cty.ObjectVal(map[string]cty.Value{"group": none["group"], "one": cty.ObjectVal(none)})
	want := cty.ObjectVal(map[string]cty.Value{"group": some["group"], "one": cty.ObjectVal(some)})
	if got := Proposed(&block, cty.NullVal(block.ImpliedType()), config); !got.RawEquals(want) {
		t.Errorf("of groups that are null came\n%#v, want\n%#v", got, want)
	}
	block.Blocks = block.Blocks[1:]
	config, want = cty.ObjectVal(map[string]cty.Value{"one": cty.ObjectVal(none)}), cty.ObjectVal(map[string]cty.Value{"one": cty.ObjectVal(some)})
	if got := Proposed(&block, cty.NullVal(block.ImpliedType()), config); !got.RawEquals(want) {
		t.Errorf("of a group within a block that is null came\n%#v, want\n%#v", got, want)
	}
}

// TestProposedFits: whatever is there, the proposed state is of the type, has all that is written and
// is what a provider may plan.
func TestProposedFits(t *testing.T) {
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		schema := &contract.Schema{Block: r.block(2, false)}
		block := &schema.Block
		config := r.config(blockLevel(block), 10)
		prior := r.prior(block, config)
		proposed := Proposed(block, prior, config)
		if problems := misfit(schema, proposed); len(problems) > 0 {
			t.Fatalf("seed %d: %v", seed, problems)
		}
		planned := computed(blockLevel(block), proposed, config)
		if problems := forbidden(block, prior, config, planned); len(problems) > 0 {
			t.Fatalf("seed %d: a plan of what is proposed is refused: %v", seed, problems)
		}
		if problems := misfit(schema, AllUnknown(block, config)); len(problems) > 0 {
			t.Fatalf("seed %d: as a data source: %v", seed, problems)
		}
		if once := normal(block, r.changed(prior, 0)); !normal(block, once).RawEquals(once) {
			t.Fatalf("seed %d: what is normal does not stay so", seed)
		}
	}
}

// prior is of the same configuration, a similar one, another one, or nothing.
func (r random) prior(block *contract.Block, config cty.Value) cty.Value {
	l := blockLevel(block)
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

// TestDeparturesAreFound: what fills in the unknown passes; what changes something that was known does not.
func TestDeparturesAreFound(t *testing.T) {
	found := 0
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		block := r.block(2, false)
		config := r.config(blockLevel(&block), 10)
		planned := computed(blockLevel(&block), Proposed(&block, cty.NullVal(block.ImpliedType()), config), config)
		known := r.known(planned)
		if problems := departures(&block, planned, known); len(problems) > 0 {
			t.Fatalf("seed %d: %v:\n%#v\n%#v", seed, problems, planned, known)
		}
		other := r.changed(known, 0)
		if other.RawEquals(known) || withoutBlocks(blockLevel(&block), known) || withoutBlocks(blockLevel(&block), other) {
			continue
		}
		found++
		if len(departures(&block, known, other)) == 0 {
			t.Fatalf("seed %d: a change went unnoticed:\n%#v\n%#v", seed, known, other)
		}
	}
	if found < rounds/4 {
		t.Fatalf("only %d changes were tried", found)
	}
}

// withoutBlocks tells whether there is a null where several blocks should be: that is not looked into, and
// no state has it.
func withoutBlocks(l level, v cty.Value) bool {
	if v.IsNull() {
		return false
	}
	for i := range l.blocks {
		n := &l.blocks[i]
		of, single := v.GetAttr(n.Name), n.Nesting == contract.NestingSingle || n.Nesting == contract.NestingGroup
		switch {
		case of.IsNull():
			if !single {
				return true
			}
		case single:
			if withoutBlocks(blockLevel(&n.Block), of) {
				return true
			}
		default:
			for it := of.ElementIterator(); it.Next(); {
				if _, one := it.Element(); withoutBlocks(blockLevel(&n.Block), one) {
					return true
				}
			}
		}
	}
	return false
}

// TestRandomDecisions: with a good provider everything random is decided, can be stored and read
// again, shown, and carried out; and once carried out there is nothing to do.
func TestRandomDecisions(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(rounds) {
		r := newRandom(seed)
		schema := &contract.Schema{Block: r.block(2, false)}
		provider := &fake{schema: schema}
		provider.apply = func(request contract.ApplyRequest) (contract.ApplyAnswer, error) {
			return contract.ApplyAnswer{State: contract.State{Value: r.known(request.Planned)}}, nil
		}
		provider.plan = func(request contract.PlanRequest) contract.PlanAnswer {
			return contract.PlanAnswer{Planned: computed(blockLevel(&schema.Block), request.Proposed, request.Config.Value)}
		}
		config := r.config(blockLevel(&schema.Block), 0)
		in := Input{Address: Address{Type: "t", Name: "n"}, Schema: schema, Provider: provider, Config: config}
		in.Prior.State.Value = r.prior(&schema.Block, config)
		in.Replace = r.chance(20)
		d, err := Decide(ctx, in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		change := showAndRead(t, seed, d, schema)
		outcome := carryOut(t, seed, d, schema, provider, config)
		if change.Action == Replace {
			continue // the fake has made another resource, which is not what this is about
		}
		// The unknown became anything, so that a set may have merged and be matched otherwise.
		in.Prior.State, in.Replace = outcome.State, false
		again, err := Decide(ctx, in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if wanted := Proposed(&schema.Block, outcome.State.Value, config); wanted.RawEquals(outcome.State.Value) && wanted.RawEquals(again.After) != (again.Action == NoOp) {
			t.Fatalf("seed %d: then %s", seed, again.Action)
		}
	}
}

func showAndRead(t *testing.T, seed uint64, d *Decision, schema *contract.Schema) *Change {
	t.Helper()
	show := Showing{Salt: []byte("0123456789abcdef")}
	change, err := d.Change(schema, show)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	text, err := change.Encode()
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	var read Change
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if again, err := read.Encode(); err != nil || string(again) != string(text) {
		t.Fatalf("seed %d: %v: not canonical:\n%s\n%s", seed, err, text, again)
	}
	if twice, err := d.Change(schema, show); err != nil || !sameDigest(t, twice, change) {
		t.Fatalf("seed %d: the same decision gives two changes", seed)
	}
	for _, v := range []*Value{read.Before, read.After} {
		n, err := v.node(read.Shapes)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if back := n.value(); v != nil && (string(back.JSON) != string(v.JSON) || len(back.Unknown) != len(v.Unknown) || len(back.Sensitive) != len(v.Sensitive)) {
			t.Fatalf("seed %d: a value does not come back:\n%s\n%s", seed, v.JSON, back.JSON)
		}
	}
	var out strings.Builder
	if err := (Rendering{}).Change(&out, &read); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return &read
}

func sameDigest(t *testing.T, a, b *Change) bool {
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

func carryOut(t *testing.T, seed uint64, d *Decision, schema *contract.Schema, provider contract.Provider, config cty.Value) *Outcome {
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
		t.Fatalf("seed %d: what was sealed is not what was opened", seed)
	}
	run := Execution{Planned: opened, Schema: schema, Provider: provider, Config: config}
	if d.Action == Replace {
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
