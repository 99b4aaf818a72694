package main

import (
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	var out, diagnostics strings.Builder
	p := newProgress(&out, 4, false)
	now := time.Unix(0, 0)
	p.now = func() time.Time { now = now.Add(10 * time.Second); return now } // each look at the clock takes that long
	p.begin()
	p.follow(strings.NewReader("internal/abi\nk8s.io/api/core/v1\n# example.com/broken\nmain.go:3:1: syntax error\nexample.com/fine\n"), &diagnostics)
	p.end(nil)
	want := "compiling 4 packages that are not in the build cache\n" +
		"compiled 2 of 4 packages (50 %), 30s so far\n" +
		"compiled 3 of 4 packages (75 %), 50s so far\n" +
		"compiled in 1m0s\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if want := "# example.com/broken\nmain.go:3:1: syntax error\n"; diagnostics.String() != want {
		t.Errorf("passed on %q, want %q", diagnostics.String(), want)
	}
}

func TestEstimate(t *testing.T) {
	for _, test := range []struct {
		packages, cores int
		want            string
	}{
		{10, 2, ""},
		{300, 2, ": about a minute on 2 cores"},
		{2280, 2, ": about 8 minutes on 2 cores, the first time"},
		{2280, 8, ": about 2 minutes on 8 cores, the first time"},
	} {
		if got := newProgress(nil, test.packages, false).estimate(test.cores); got != test.want {
			t.Errorf("%d packages on %d cores: %q, want %q", test.packages, test.cores, got, test.want)
		}
	}
}

func TestListArgs(t *testing.T) {
	got := strings.Join(listArgs([]string{"-race", "-export", "-o", "bin/atoll", "-test", "./..."}), " ")
	if want := "-race -test ./..."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
