// Package negotiation compares fleet/schema with upstream's own code. It computes the intersection of
// random pairs of schemas. Then it sends random objects to an API server with the intersection, and on
// to API servers with the two schemas. It is outside the product because the floor of fleet/schema must
// not import Kubernetes' API server.
//
//	go test ./test/negotiation -runs 100000 -seed 7
package negotiation

import (
	"encoding/json"
	"flag"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/pairs"
)

var (
	count = flag.Int("runs", 2000, "how many pairs of schemas to compare")
	seed  = flag.Uint64("seed", 1, "seed of the random pairs")
	only  = flag.Int("pair", -1, "compare only the pair with this number")
)

// A tally counts results over all pairs.
type tally struct {
	pairs, equal, narrowed, decided, yes   atomic.Int64
	accepting, objects, sent, both, missed atomic.Int64
	updates                                atomic.Int64
	unsound, invalid, unstable             atomic.Int64
	mu                                     sync.Mutex
	reasons                                map[schema.Reason]int
}

func (c *tally) refused(refusals []schema.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[schema.Reason]bool{}
	for _, r := range refusals {
		if !seen[r.Reason] {
			seen[r.Reason] = true
			c.reasons[r.Reason]++
		}
	}
}

func TestNegotiatedSchemasAreSound(t *testing.T) {
	total := &tally{reasons: map[schema.Reason]int{}}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				pair := int(next.Add(1)) - 1
				if pair >= *count || total.unsound.Load()+total.invalid.Load()+total.unstable.Load() > 5 {
					return
				}
				if *only < 0 || pair == *only {
					comparePair(t, total, pair)
				}
			}
		})
	}
	workers.Wait()
	report(t, total)
}

func report(t *testing.T, c *tally) {
	share := func(part, whole int64) string {
		return fmt.Sprintf("%d of %d (%.1f %%)", part, whole, 100*float64(part)/float64(max(whole, 1)))
	}
	t.Logf("seed %d: %d pairs, %d objects and %d updates sent to both sides, of %d objects", *seed, c.pairs.Load(), c.sent.Load(), c.updates.Load(), c.objects.Load())
	t.Logf("unsound results:                    %d", c.unsound.Load())
	t.Logf("results that no API server accepts: %d", c.invalid.Load())
	t.Logf("results not contained in a source:  %d", c.unstable.Load())
	t.Logf("pairs with an intersection:         %s", share(c.narrowed.Load(), c.pairs.Load()))
	t.Logf("  accepting at least one object:    %s", share(c.accepting.Load(), c.narrowed.Load()))
	t.Logf("pairs contained without narrowing:  %s", share(c.yes.Load(), c.pairs.Load()))
	t.Logf("objects that both sources accept and the intersection does not: %s", share(c.missed.Load(), c.both.Load()))
	t.Logf("pairs refused, by reason:           %v", c.reasons)
}

func comparePair(t *testing.T, c *tally, pair int) {
	r := pairs.New(*seed, uint64(pair))
	a, b := r.Pair()
	c.pairs.Add(1)
	serverA, errA := newAPIServer(a)
	serverB, errB := newAPIServer(b)
	if errA != nil || errB != nil {
		t.Fatalf("pair %d is not a pair of CRDs: %v %v", pair, errA, errB)
	}
	p := &pairTest{c, r, pair, a, b, serverA, serverB}
	if _, refusals := schema.Compare(a, b, false); len(refusals) == 0 {
		c.yes.Add(1)
		if _, err := p.try("contained", a, serverA); err != nil {
			c.unsound.Add(1)
			t.Error(err)
		}
	}
	result, refusals := schema.Compare(a, b, true)
	if len(refusals) > 0 {
		c.refused(refusals)
		return
	}
	c.narrowed.Add(1)
	server, err := newAPIServer(result)
	if err == nil {
		err = pairs.Validate(result)
	}
	if err != nil {
		c.invalid.Add(1)
		t.Errorf("pair %d: the result is not a CRD: %v\n%s", pair, err, p.show(result))
		return
	}
	for _, source := range []*props{a, b, result} {
		if _, why := schema.Compare(result, source, false); len(why) > 0 {
			c.unstable.Add(1)
			t.Errorf("pair %d: the result is not contained in its sources: %v\n%s", pair, why, p.show(result))
		}
	}
	accepting, err := p.try("intersection", result, server)
	if err != nil {
		c.unsound.Add(1)
		t.Error(err)
	}
	if accepting {
		c.accepting.Add(1)
	}
}

// A pairTest tests objects with one pair of schemas.
type pairTest struct {
	c                *tally
	r                pairs.Generator
	pair             int
	a, b             *props
	serverA, serverB *apiServer
}

func (p *pairTest) show(result *props) string {
	return fmt.Sprintf("one:    %s\nother:  %s\nresult: %s\nrepeat: -seed %d -pair %d -runs %d", text(p.a), text(p.b), text(result), *seed, p.pair, p.pair+1)
}

func text(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// try sends objects to an API server with the result, and the stored objects to those with the sources.
// Then it sends updates in the same way. It reports whether any object was accepted, and returns the
// first error.
func (p *pairTest) try(relation string, result *props, server *apiServer) (accepted bool, wrong error) {
	var all []map[string]any
	for i := range 27 {
		from := []*props{result, p.a, p.b}[i%3]
		object := p.r.Object(from, []int{0, 2, 10}[i/3%3])
		p.c.objects.Add(1)
		stored, lost, refused := server.admit(object, nil)
		if relation == "intersection" {
			p.complete(object, refused != nil || len(lost) > 0)
		}
		if refused != nil {
			continue
		}
		p.c.sent.Add(1)
		if wrong := p.send(relation, nil, stored, result, server); wrong != nil {
			return true, wrong
		}
		all = append(all, stored)
	}
	if !server.transitions && !p.serverA.transitions && !p.serverB.transitions {
		return len(all) > 0, nil
	}
	for i := range len(all) * 3 {
		before, after := all[i%len(all)], all[p.r.IntN(len(all))]
		if _, _, refused := server.admit(after, before); refused != nil {
			continue
		}
		p.c.updates.Add(1)
		if wrong := p.send(relation, before, after, result, server); wrong != nil {
			return true, wrong
		}
	}
	return len(all) > 0, nil
}

// send sends an object that an API server with the result has stored to those with the sources. before
// is the object stored earlier, if it is an update.
func (p *pairTest) send(relation string, before, stored map[string]any, result *props, server *apiServer) error {
	for i, member := range []*apiServer{p.serverA, p.serverB} {
		if err := member.checkStored(stored, before, server); err != nil {
			name := []string{"one", "the other"}[i]
			return fmt.Errorf("pair %d, %s: an object that the result accepts %s %w\nobject: %s\nbefore: %s\n%s", p.pair, relation, name, err, text(stored), text(before), p.show(result))
		}
	}
	return nil
}

// complete counts objects that both sources store unchanged.
func (p *pairTest) complete(object map[string]any, refused bool) {
	for _, s := range []*apiServer{p.serverA, p.serverB} {
		if stored, lost, err := s.admit(object, nil); err != nil || len(lost) > 0 || !reflect.DeepEqual(stored, object) {
			return
		}
	}
	p.c.both.Add(1)
	if refused {
		p.c.missed.Add(1)
	}
}
