package view

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRequestsAreCounted(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"))
	m := s.host.cfg.Metrics
	requests := func(method, code string) float64 {
		return testutil.ToFloat64(m.requests.WithLabelValues("east", method, code))
	}
	path := eastView + "/api/v1/secrets"
	if code, text := s.ask(syncerOf("east"), "GET", path, nil); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	former := syncerOf("east")
	former.Groups = former.Groups[:1]
	if code, text := s.ask(former, "GET", path, nil); code != http.StatusForbidden {
		t.Fatalf("%d %s", code, text)
	}
	s.ask(syncerOf("east"), "BREW", path, nil)
	if ok, forbidden, other := requests("GET", "200"), requests("GET", "403"), requests("OTHER", "405"); ok != 1 || forbidden != 1 || other != 1 {
		t.Errorf("counted %v, %v and %v", ok, forbidden, other)
	}
	if n := testutil.CollectAndCount(m.seconds); n != 2 {
		t.Errorf("%d series of durations, want those of GET and OTHER", n)
	}

	w := s.watch(syncerOf("east"), path+"?watch=1")
	w.expect("ADDED one")
	if n := testutil.ToFloat64(m.watches.WithLabelValues("east")); n != 1 {
		t.Errorf("%v watches", n)
	}
	m.forget("east")
	if n := testutil.CollectAndCount(m.requests) + testutil.CollectAndCount(m.watches); n != 0 {
		t.Errorf("%d series of a cluster that has left", n)
	}
}
