package partition

import (
	"math/rand/v2"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// Sampled returns a partition's revision when the parent was at rev.
func (k *Keyspace) Sampled(prefix string, rev kv.Revision) kv.Revision {
	for _, p := range k.layout.Load().parts {
		if p.prefix == prefix {
			return p.times.at(rev)
		}
	}
	return 0
}

// TestTimeline checks that a timeline never returns too late a partition revision, however
// much it has been thinned out.
func TestTimeline(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	var line timeline
	var truth []sample // each parent revision with the partition's at its begin
	parent, own := kv.Revision(1), kv.Revision(1)
	for range 20 * maxSamples {
		before := parent
		parent += r.Int64N(3)
		own += r.Int64N(4)
		if parent != before {
			truth = append(truth, sample{parent, own})
		}
		line.add(parent, own)
	}
	if n := len(line.samples); n > maxSamples {
		t.Errorf("the timeline has %d samples", n)
	}
	exact := 0
	for _, s := range truth {
		switch got := line.at(s.parent); {
		case got > s.own:
			t.Fatalf("at parent revision %d the partition was at %d, the timeline has %d", s.parent, s.own, got)
		case got == s.own:
			exact++
		}
	}
	if exact < maxSamples/4 {
		t.Errorf("of %d samples only %d are exact", len(truth), exact)
	}
	if line.at(0) != 0 {
		t.Error("it returns a revision before its begin")
	}
}

// FuzzFind checks routing against its definition: a span lies in one part if all its
// possible keys do.
func FuzzFind(f *testing.F) {
	l := &layout{}
	for _, prefix := range []string{"/a/", "/b/c/", "/b/d/", "\xff/"} {
		l.parts = append(l.parts, &part{prefix: prefix, span: kv.Prefix([]byte(prefix))})
	}
	for _, s := range []string{"/a/", "/a", "/a0", "/b/c/x", "/b/c0", "\x00", "\xff/", "\xff0", "z"} {
		f.Add([]byte(s), []byte(""), []byte(s))
		f.Add([]byte(s), []byte("/b/d/1"), []byte("/b/c/y"))
		f.Add([]byte(s), []byte{0}, []byte("/a/1"))
	}
	f.Fuzz(func(t *testing.T, start, end, key []byte) {
		if len(start) == 0 || len(key) == 0 {
			return
		}
		s := kv.Span{Start: start, End: end}
		at, of := l.find(s), l.find(kv.Span{Start: key})
		if of == several {
			t.Fatalf("key %q has several locations", key)
		}
		names := of >= 0 && string(key)+"/" == l.parts[of].prefix
		if of != inParent && !names && !l.parts[of].span.Contains(key) {
			t.Fatalf("key %q has location %d", key, of)
		}
		if !names && s.Contains(key) && at != several && at != of {
			t.Fatalf("span %q has location %d, its key %q has %d", s, at, key, of)
		}
		if at == several && s.Single() {
			t.Fatalf("span %q is a single key, but has several locations", s)
		}
	})
}
