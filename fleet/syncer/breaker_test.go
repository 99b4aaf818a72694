package syncer

import "testing"

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		name          string
		leaving, kept int
		percent       int32
		want          bool
	}{
		{"a few of few", 10, 10, 20, true},
		{"one more", 11, 11, 20, false},
		{"a fifth of many", 200, 1000, 20, true},
		{"more than that", 201, 1000, 20, false},
		{"all, switched off", 1000, 1000, 100, true},
		{"the few always", 10, 1000, 0, true},
		{"and no more", 11, 1000, 0, false},
	} {
		if got := within(tt.leaving, tt.kept, tt.percent); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
