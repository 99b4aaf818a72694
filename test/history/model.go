package history

import (
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/atoll-dev/atoll/kv"
)

// position is a state of the model: the revision and the keys. It is immutable.
type position struct {
	revision kv.Revision
	keys     [Keys]*kv.KeyValue
}

func keyNumber(key string) int { return int(key[len(prefix)] - '0') }

// with returns the next position, with the keys put or, if value is nil, deleted.
func (p *position) with(keys []string, value []byte) *position {
	next := &position{p.revision + 1, p.keys}
	for _, key := range keys {
		n := keyNumber(key)
		old := p.keys[n]
		if value == nil {
			next.keys[n] = nil
			continue
		}
		k := &kv.KeyValue{Key: []byte(key), Value: value, CreateRevision: next.revision, ModRevision: next.revision, Version: 1}
		if old != nil {
			k.CreateRevision, k.Version = old.CreateRevision, old.Version+1
		}
		next.keys[n] = k
	}
	return next
}

func (p *position) get(keys []string) []kv.KeyValue {
	var found []kv.KeyValue
	for _, key := range keys {
		if k := p.keys[keyNumber(key)]; k != nil {
			found = append(found, *k)
		}
	}
	return found
}

// step applies a call, and reports whether its answer is possible. An unknown outcome is possible in
// any position. But if a watch delivered the value of such a write, it must have made that revision.
func (p *position) step(c *Call) (possible bool, next *position) {
	known := c.Outcome == Answered
	switch c.Kind {
	case Put, Pair:
		next = p.with(c.Keys, []byte(c.Value))
		if known && !equalAll(c.Before, p.get(c.Keys)) {
			return false, p
		}
		return c.Revision == next.revision, next
	case Swap:
		k := p.keys[keyNumber(c.Keys[0])]
		if (k == nil && c.Expect == 0) || (k != nil && k.ModRevision == c.Expect) {
			next = p.with(c.Keys, []byte(c.Value))
			return c.Changed && c.Revision == next.revision, next
		}
		return !c.Changed && (!known || c.Revision == p.revision && equalAll(c.Found, p.get(c.Keys))), p
	case Delete:
		found := p.get(c.Keys)
		if len(found) > 0 {
			next = p.with(c.Keys, nil)
			return !known || c.Changed && c.Revision == next.revision && equalAll(c.Before, found), next
		}
		return !known || !c.Changed && c.Revision == p.revision, p
	case Get:
		return c.Revision == p.revision && equalAll(c.Found, p.get(c.Keys)), p
	default:
		var all []kv.KeyValue
		for _, k := range p.keys {
			if k != nil {
				all = append(all, *k)
			}
		}
		return c.Revision == p.revision && equalAll(c.Found, all), p
	}
}

func (p *position) equal(o *position) bool {
	return p.revision == o.revision && slices.EqualFunc(p.keys[:], o.keys[:], func(a, b *kv.KeyValue) bool {
		return a == b || a != nil && b != nil && equal(*a, *b)
	})
}

func (p *position) hash() uint64 {
	h := uint64(p.revision)
	for _, k := range p.keys {
		h *= 1099511628211
		if k != nil {
			h += uint64(k.ModRevision)
		}
	}
	return h
}

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &position{revision: 1} },
		Step: func(state, input, _ any) (bool, any) {
			possible, next := state.(*position).step(input.(*Call))
			return possible, next
		},
		Equal: func(a, b any) bool { return a.(*position).equal(b.(*position)) },
		Hash:  func(s any) uint64 { return s.(*position).hash() },
	}
}

// search looks for an order of all calls that explains every answer. Each call takes effect between its
// beginning and its end.
//
// Writes of unknown outcome have no end. If no watch delivered its value, such a write did not happen
// as far as anyone could see, and is left out; if a reader saw it nevertheless, there is no order.
// Refused writes are left out too, and so are reads at old revisions, which depend on no current state.
func search(calls []*Call, limit time.Duration, report *Report) {
	var history []porcupine.Operation
	for _, c := range calls {
		end := c.End
		switch {
		case c.Outcome == Refused, c.Kind == Past, c.Outcome == Unknown && !c.Changed && c.Kind != Delete:
			continue
		case c.Outcome == Unknown:
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: c.Client, Input: c, Call: c.Begin, Return: end})
	}
	switch porcupine.CheckOperationsTimeout(model(), history, limit) {
	case porcupine.Ok:
		report.Linearizable = true
	case porcupine.Illegal:
		report.violated("not linearizable: no order of the %d calls explains their answers", len(history))
	case porcupine.Unknown:
		report.Undecided = true
	}
}
