package mvcc

import (
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

func TestRetentionDecides(t *testing.T) {
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// A hundred revisions per minute, for ten minutes.
	var samples []sample
	for i := range 11 {
		samples = append(samples, sample{start.Add(time.Duration(i) * time.Minute), kv.Revision(100 * i)})
	}
	now := start.Add(10 * time.Minute)
	head := kv.Head{Revision: 1000}
	for name, c := range map[string]struct {
		Retention
		kv.History
		want decision
	}{
		"nothing":                      {Retention{}, kv.History{Head: head}, decision{}},
		"age":                          {Retention{Age: 3 * time.Minute}, kv.History{Head: head}, decision{700, false}},
		"age, between two checks":      {Retention{Age: 150 * time.Second}, kv.History{Head: head}, decision{700, false}},
		"age, too young":               {Retention{Age: time.Hour}, kv.History{Head: head}, decision{}},
		"age, compacted":               {Retention{Age: 3 * time.Minute}, kv.History{Head: kv.Head{Revision: 1000, Compacted: 700}}, decision{}},
		"revisions":                    {Retention{Revisions: 250}, kv.History{Head: head}, decision{750, false}},
		"revisions, few":               {Retention{Revisions: 2000}, kv.History{Head: head}, decision{}},
		"changes within their bound":   {Retention{MaxChanges: 1000}, kv.History{Head: head, Changes: 1000}, decision{}},
		"changes, down to 3/4":         {Retention{MaxChanges: 800}, kv.History{Head: head, Changes: 1000}, decision{400, true}},
		"changes, ten per revision":    {Retention{MaxChanges: 8000}, kv.History{Head: head, Changes: 10000}, decision{400, true}},
		"changes, not below the floor": {Retention{MaxChanges: 10}, kv.History{Head: head, Changes: 1000}, decision{800, true}},
		"changes, floor compacted":     {Retention{MaxChanges: 10}, kv.History{Head: kv.Head{Revision: 1000, Compacted: 800}, Changes: 200}, decision{}},
		"changes, age goes further":    {Retention{MaxChanges: 800, Age: time.Minute}, kv.History{Head: head, Changes: 1000}, decision{900, false}},
		"changes go further than age":  {Retention{MaxChanges: 100, Age: 5 * time.Minute}, kv.History{Head: head, Changes: 1000}, decision{800, true}},
	} {
		c.Retention.fill()
		if got := c.decide(now, samples, c.History); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestRetentionSamples checks that samples stay ascending and bounded.
func TestRetentionSamples(t *testing.T) {
	r := Retention{MaxChanges: 1 << 40}
	r.fill()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var samples []sample
	for i := range 100_000 {
		m := sample{start.Add(time.Duration(i) * time.Minute), kv.Revision(i / 2)}
		samples = r.addSample(samples, m, 10)
	}
	if len(samples) > maxSamples || len(samples) < maxSamples/2 {
		t.Errorf("%d samples", len(samples))
	}
	if !slices.IsSortedFunc(samples, func(a, b sample) int { return a.at.Compare(b.at) }) {
		t.Error("samples are out of order")
	}
	if first, last := samples[0], samples[len(samples)-1]; first.rev != 10 || last.rev != 49_999 {
		t.Errorf("samples from %v to %v", first, last)
	}
	if samples = r.addSample(samples, samples[len(samples)-1], 49_999); len(samples) != 1 {
		t.Errorf("%d samples of compacted revisions", len(samples))
	}
}
