package partition_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A member is cut off from everything for a while: database, other members and their
// servers.
func TestAnIsland(t *testing.T) {
	s := stretched(t)
	if _, err := write(t.Context(), s.letters(t, "west"), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	var observers []*observer
	for _, m := range members {
		observers = append(observers, startObserver(t, m, s.letters(t, m)))
	}
	w := startWriter(t, s.letters(t, "west"), "island")
	r := startReader(t, s.client(t, "east"))
	a := startAsker(t, s, "east", "read-me")
	time.Sleep(5 * time.Second)
	before, errs := r.take()
	t.Logf("local in east, before: %s; errors %v", before, errs)

	cutAt := time.Now()
	if err := s.network.cut("east", s.network.others("east")...); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		began := time.Now()
		out, err := s.kubectl(t.Context(), "east", "", "create", "namespace", "passing")
		t.Logf("create ns: %s %v", out, err)
		out, err = s.kubectl(t.Context(), "east", "", "get", "pods", "-A")
		t.Logf("get pods after %s: %s %v", time.Since(began), out, err)
		out, err = s.kubectl(t.Context(), "east", "", "delete", "namespace", "passing", "--timeout=100s")
		t.Logf("delete ns after %s: %s %v", time.Since(began), out, err)
	}()
	time.Sleep(*cutTime)
	out, err := s.kubectl(t.Context(), "east", "", "get", "apiservice", "v1.shared.test.atoll.dev")
	t.Logf("APIService: %s %v", out, err)
	out, err = s.kubectl(t.Context(), "east", "", "get", "ns", "passing", "-o", "yaml")
	t.Logf("ns: %s %v", out, err)
	out, err = s.kubectl(t.Context(), "east", "", "get", "note", "-n", "letters")
	t.Logf("notes: %s %v", out, err)
	during, errs := r.take()
	t.Logf("local in east, during: %s; errors %v", during, errs)
	healed := time.Now()
	if err := s.network.heal("east", s.network.others("east")...); err != nil {
		t.Fatal(err)
	}
	for _, one := range a.between(cutAt, healed.Add(time.Minute)) {
		t.Logf("%s after the cut: %s %v", one.began.Sub(cutAt), one.took, one.err)
	}
	probe := w.last()
	eventually(t, 2*time.Minute, "the watch in east is up to date", func(context.Context) bool { return observers[0].saw(probe) })
	eventually(t, 2*time.Minute, "shared reads in east work", func(ctx context.Context) bool {
		_, err := s.letters(t, "east").Get(ctx, "read-me", metav1.GetOptions{})
		return err == nil
	})
	<-gone
	time.Sleep(5 * time.Second)
	after, errs := r.take()
	t.Logf("local in east, after: %s; errors %v", after, errs)
	w.end()
	for _, o := range observers {
		eventually(t, 20*time.Second, "the watch in "+o.member+" saw all", func(context.Context) bool { return o.saw(w.last()) })
		o.check(t, w)
		t.Logf("%s resumed %d; before %s; during %s; after %s", o.member, o.resumed, o.delays(w, time.Time{}, cutAt), o.delays(w, cutAt, healed), o.delays(w, healed, time.Now()))
	}
	t.Logf("writer: %d, worst %s, errors %v", len(w.acknowledged), w.worst, w.errors)
}

func eventually(t *testing.T, limit time.Duration, what string, check func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !check(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %s", what, limit)
		case <-tick.C:
		}
	}
	t.Logf("%s: after %s", what, time.Since(began).Round(10*time.Millisecond))
}
