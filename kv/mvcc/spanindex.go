package mvcc

import (
	"slices"
	"sort"

	"github.com/atoll-dev/atoll/kv"
)

// spanIndex finds the watches of a key. Single keys are in a map. For spans, the key space
// is cut at every bound of every span, and each piece lists its watches. So a lookup is a
// binary search, regardless of the number of watches. Watches start and end rarely enough
// to make the cutting worthwhile.
type spanIndex struct {
	single map[string]map[*watcher]struct{}
	pieces []piece        // by start; the first starts at ""
	bounds map[string]int // number of spans that begin or end there
	spans  map[*watcher]struct{}
}

// piece is the keys from start up to the next piece's start.
type piece struct {
	start    string
	watchers []*watcher
}

func newSpanIndex() spanIndex {
	return spanIndex{
		single: map[string]map[*watcher]struct{}{},
		pieces: []piece{{}},
		bounds: map[string]int{},
		spans:  map[*watcher]struct{}{},
	}
}

// visit calls f with every watch whose span contains the key.
func (x *spanIndex) visit(key []byte, f func(*watcher)) {
	for w := range x.single[string(key)] {
		f(w)
	}
	i := sort.Search(len(x.pieces), func(i int) bool { return x.pieces[i].start > string(key) }) - 1
	for _, w := range x.pieces[i].watchers {
		f(w)
	}
}

func (x *spanIndex) add(w *watcher) {
	span := w.req.Span
	if span.Single() {
		set := x.single[string(span.Start)]
		if set == nil {
			set = map[*watcher]struct{}{}
			x.single[string(span.Start)] = set
		}
		set[w] = struct{}{}
		return
	}
	x.spans[w] = struct{}{}
	if empty(span) {
		return
	}
	from, to := x.cut(string(span.Start)), len(x.pieces)
	if !span.ToEnd() {
		to = x.cut(string(span.End))
	}
	for i := from; i < to; i++ {
		x.pieces[i].watchers = append(x.pieces[i].watchers, w)
	}
}

// remove removes a watch, if it is there.
func (x *spanIndex) remove(w *watcher) {
	span := w.req.Span
	if span.Single() {
		set := x.single[string(span.Start)]
		delete(set, w)
		if len(set) == 0 {
			delete(x.single, string(span.Start))
		}
		return
	}
	if _, ok := x.spans[w]; !ok {
		return
	}
	delete(x.spans, w)
	if empty(span) {
		return
	}
	from, to := x.find(string(span.Start)), len(x.pieces)
	if !span.ToEnd() {
		to = x.find(string(span.End))
	}
	for i := from; i < to; i++ {
		p := &x.pieces[i]
		if j := slices.Index(p.watchers, w); j >= 0 {
			p.watchers = slices.Delete(p.watchers, j, j+1)
		}
	}
	if !span.ToEnd() {
		x.uncut(string(span.End))
	}
	x.uncut(string(span.Start))
}

// all lists every watch.
func (x *spanIndex) all() []*watcher {
	list := make([]*watcher, 0, len(x.spans))
	for w := range x.spans {
		list = append(list, w)
	}
	for _, set := range x.single {
		for w := range set {
			list = append(list, w)
		}
	}
	return list
}

// find returns the piece that starts at a bound.
func (x *spanIndex) find(bound string) int {
	return sort.Search(len(x.pieces), func(i int) bool { return x.pieces[i].start >= bound })
}

// cut makes a piece start at a bound and returns its index.
func (x *spanIndex) cut(bound string) int {
	x.bounds[bound]++
	i := x.find(bound)
	if i == len(x.pieces) || x.pieces[i].start != bound {
		x.pieces = slices.Insert(x.pieces, i, piece{bound, slices.Clone(x.pieces[i-1].watchers)})
	}
	return i
}

// uncut joins the pieces on both sides of a bound that no span has any more: they have the
// same watches.
func (x *spanIndex) uncut(bound string) {
	if x.bounds[bound]--; x.bounds[bound] > 0 {
		return
	}
	delete(x.bounds, bound)
	if i := x.find(bound); bound != "" {
		x.pieces = slices.Delete(x.pieces, i, i+1)
	}
}

func empty(s kv.Span) bool {
	return !s.ToEnd() && string(s.End) <= string(s.Start)
}
