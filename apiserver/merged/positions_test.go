package merged

import (
	"maps"
	"testing"
	"time"
)

// TestPositions: numbers increase, also if the clock does not. Each belongs to one list or watch. The oldest are forgotten.
func TestPositions(t *testing.T) {
	p := &Positions{limit: 8}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	first := p.remember("x", position{"a": 1}, now)
	second := p.remember("x", position{"a": 2, "b": 1}, now.Add(-time.Hour))
	if second <= first || first < firstPosition || (&Positions{}).remember("x", nil, time.Time{}) < firstPosition {
		t.Errorf("%d, then %d", first, second)
	}
	if at, ok := p.recall("x", second); !ok || !maps.Equal(at, position{"a": 2, "b": 1}) {
		t.Errorf("%v, %v", at, ok)
	}
	if at, ok := p.recall("y", second); ok {
		t.Errorf("another watch has it: %v", at)
	}
	for i := range 20 {
		last := p.remember("x", position{"a": int64(i)}, now)
		if _, ok := p.recall("x", last); !ok || p.size > p.limit || len(p.kept) != len(p.order) {
			t.Fatalf("after %d: %v, %d entries, %v", i, ok, p.size, p.order)
		}
	}
	for _, old := range []uint64{first, second} {
		if _, ok := p.recall("x", old); ok {
			t.Errorf("%d is remembered", old)
		}
	}
	for _, number := range append([]uint64{1}, p.order...) {
		p.forget(number)
	}
	if p.size != 0 || len(p.kept) != 0 || len(p.order) != 0 {
		t.Errorf("after all are forgotten: %+v", p)
	}
	if large := p.remember("x", position{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1}, now); len(p.order) != 1 || p.order[0] != large {
		t.Error("a position that is larger than the limit is not remembered")
	}
}
