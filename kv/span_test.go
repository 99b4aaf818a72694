package kv_test

import (
	"bytes"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// FuzzSpan checks spans against their definition, with ends above, at and below the start.
func FuzzSpan(f *testing.F) {
	f.Add([]byte("a"), []byte(""), []byte("a"))
	f.Add([]byte("a"), []byte("c"), []byte("b\x00"))
	f.Add([]byte("c"), []byte("a"), []byte("b"))
	f.Add([]byte("\x00"), []byte("\x00"), []byte("\xff\xff"))
	f.Add([]byte("\xff"), []byte("\xff\xff"), []byte("\xff"))
	f.Fuzz(func(t *testing.T, start, end, key []byte) {
		s := kv.Span{Start: start, End: end}
		if s.Single() && s.ToEnd() {
			t.Errorf("%q is both a single key and without an upper bound", s)
		}
		want := false
		switch {
		case len(end) == 0:
			want = bytes.Equal(key, start)
		case bytes.Equal(end, []byte{0}):
			want = string(key) >= string(start)
		default:
			want = string(key) >= string(start) && string(key) < string(end)
		}
		if s.Contains(key) != want {
			t.Errorf("%q contains %q: %v", s, key, !want)
		}
		prefix := kv.Prefix(start)
		if len(key) > 0 && prefix.Contains(key) != bytes.HasPrefix(key, start) {
			t.Errorf("the span of prefix %q, %q, contains %q: %v", start, prefix, key, prefix.Contains(key))
		}
		if len(prefix.Start) == 0 {
			t.Errorf("the span of prefix %q begins with the empty key, which is not a valid key", start)
		}
	})
}
