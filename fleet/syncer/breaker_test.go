package syncer

import "testing"

func TestWithinLimit(t *testing.T) {
	for _, tt := range []struct {
		name          string
		leaving, kept int
		percent       int32
		want          bool
	}{
		{"minimum of few", 10, 10, 20, true},
		{"one more than the minimum", 11, 11, 20, false},
		{"a fifth of many", 200, 1000, 20, true},
		{"more than a fifth", 201, 1000, 20, false},
		{"all, without limit", 1000, 1000, 100, true},
		{"minimum with limit 0", 10, 1000, 0, true},
		{"more than the minimum with limit 0", 11, 1000, 0, false},
	} {
		if got := withinLimit(tt.leaving, tt.kept, tt.percent); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
