package kv

import "bytes"

// Single reports whether the span is one key.
func (s Span) Single() bool { return len(s.End) == 0 }

// ToEnd reports whether the span has no upper bound.
func (s Span) ToEnd() bool { return len(s.End) == 1 && s.End[0] == 0 }

// Contains reports whether key lies in the span.
func (s Span) Contains(key []byte) bool {
	switch {
	case s.Single():
		return bytes.Equal(s.Start, key)
	case s.ToEnd():
		return bytes.Compare(key, s.Start) >= 0
	default:
		return bytes.Compare(key, s.Start) >= 0 && bytes.Compare(key, s.End) < 0
	}
}

// Prefix returns the span of all keys that begin with p; an empty p means every key.
func Prefix(p []byte) Span {
	if len(p) == 0 {
		return Span{Start: []byte{0}, End: []byte{0}}
	}
	end := bytes.Clone(p)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return Span{Start: p, End: end[:i+1]}
		}
	}
	return Span{Start: p, End: []byte{0}}
}
