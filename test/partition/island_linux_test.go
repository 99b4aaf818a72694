package partition_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// answerLimit is within what time a read of something shared is answered: 4 s in the
	// server that has lost its database, and what a busy machine adds.
	answerLimit = 8 * time.Second
	// returnLimit is how long after the end of a cut all is as before: a server gives up a
	// silent database after 6 s and connects for up to 5 s, and a machine may be busy.
	returnLimit = 15 * time.Second
	// stallLimit is how long those who are not cut off may wait for a database that has
	// not yet ended a transaction of the one who is.
	stallLimit = 12 * time.Second
)

// A member is cut off from the database, the other members and their servers. What is
// its own goes on as before; what is shared says soon and clearly that it cannot be
// read; the other members notice nothing. Afterwards its watches miss nothing.
func TestAMemberCutOff(t *testing.T) {
	s := stretched(t)
	if _, err := write(t.Context(), s.letters(t, "west"), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	var observers []*observer
	for _, m := range members {
		observers = append(observers, startObserver(t, m, s.letters(t, m)))
	}
	east := observers[slices.Index(members, "east")]
	w := startWriter(t, s.letters(t, "west"), "island")
	local := startReader(t, s.client(t, "east"))
	shared := startAsker(t, s, "east", "read-me")
	pass(t, 4*time.Second)
	before := local.check(t, "before the cut", samples(nil))

	heal := s.network.cut(t, "east", s.network.others("east")...)
	cut := time.Now()
	s.useLocally(t, "east", "passing")
	s.namespaceGoes(t, "east", "passing", time.Minute)
	s.complains(t, "east")
	pass(t, *cutTime-time.Since(cut))
	during := local.check(t, "during it", before)
	heal()
	healed := time.Now()

	newest := w.last()
	eventually(t, returnLimit, "the watch in east is up to date", func(context.Context) error { return east.saw(newest) })
	eventually(t, returnLimit, "east reads what is shared", func(ctx context.Context) error {
		_, err := s.letters(t, "east").Get(ctx, "read-me", metav1.GetOptions{})
		return err
	})
	pass(t, 4*time.Second)
	local.check(t, "after it", during)
	unanswered(t, shared.between(cut, healed.Add(-answerLimit)))
	t.Logf("east was without what is shared for %s after the end of the cut", returned(shared.between(healed.Add(-answerLimit), time.Now()), healed).Round(10*time.Millisecond))

	w.end()
	for _, o := range observers {
		eventually(t, returnLimit, "the watch in "+o.member+" saw everything", func(context.Context) error { return o.saw(w.last()) })
		o.check(t, w)
		t.Logf("from a write in west to its event in %s: before %v; during %v; after %v; watches resumed: %d",
			o.member, o.delays(w, time.Time{}, cut.Add(-time.Second)), o.delays(w, cut, healed), o.delays(w, healed, time.Now()), o.resumed)
	}
	t.Logf("the first event in east came %s after the end of the cut", east.firstAfter(healed).Round(time.Millisecond))
	w.check(t)
}

// pass lets time pass: that of a cut, or in which something is measured.
func pass(t *testing.T, d time.Duration) {
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

// useLocally is an administrator of a member at work with what is its own: no kind of
// which he asks is shared, but kubectl and controllers discover all. In the end he
// deletes a namespace.
func (s *stage) useLocally(t *testing.T, member, namespace string) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods,deployments", "-A"},
		{"get", "shells"},
		{"api-resources"},
		{"create", "namespace", namespace},
		{"create", "configmap", "luggage", "-n", namespace},
		{"delete", "namespace", namespace, "--wait=false"},
	} {
		began := time.Now()
		if _, err := s.kubectl(t.Context(), member, "", args...); err != nil {
			t.Errorf("cut off: %v", err)
		}
		t.Logf("cut off: kubectl %s takes %s", strings.Join(args, " "), time.Since(began).Round(10*time.Millisecond))
	}
}

// namespaceGoes waits until a namespace is gone. Its controller has to see what is left
// of every kind, shared ones too.
func (s *stage) namespaceGoes(t *testing.T, member, name string, limit time.Duration) {
	t.Helper()
	client := s.client(t, member).CoreV1().Namespaces()
	eventually(t, limit, "namespace "+name+" is gone", func(ctx context.Context) error {
		namespace, err := client.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it has conditions %v", namespace.Status.Conditions)
	})
}

// complains: what is shared cannot be used, and whoever tries hears why.
func (s *stage) complains(t *testing.T, member string) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "note", "read-me", "-n", "letters"},
		{"get", "notes", "-n", "letters"},
		{"annotate", "note", "read-me", "-n", "letters", "seen=no"},
	} {
		began := time.Now()
		_, err := s.kubectl(t.Context(), member, "", args...)
		took := time.Since(began).Round(10 * time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), unreachable) {
			t.Errorf("after %s: %v", took, err)
			continue
		}
		t.Logf("after %s: %v", took, err)
	}
}

// unreachable is what a server says without its database.
const unreachable = "the datastore of this server cannot be reached"

// unanswered: none of these reads was answered with what they asked for.
func unanswered(t *testing.T, answers []answer) {
	t.Helper()
	var took samples
	named := 0
	for _, a := range answers {
		took = append(took, a.took)
		if a.took > answerLimit || !apierrors.IsServiceUnavailable(a.err) {
			t.Errorf("a shared object read while its database was out of reach: after %s: %v", a.took, a.err)
		} else if strings.Contains(a.err.Error(), unreachable) {
			named++
		}
	}
	// On a busy machine, a member's check of the APIService may time out. Then the member answers by
	// itself, with the same code and without the reason.
	if named < len(answers)/2 {
		t.Errorf("only %d of %d answers name the reason", named, len(answers))
	}
	if len(answers) == 0 {
		t.Error("nobody has read what is shared")
		return
	}
	t.Logf("shared reads while the database is out of reach, %v: %v", took, answers[len(answers)-1].err)
}

// returned is how long after the end of a cut the last read failed.
func returned(answers []answer, healed time.Time) (after time.Duration) {
	for _, a := range answers {
		if a.err != nil {
			after = max(after, a.began.Add(a.took).Sub(healed))
		}
	}
	return after
}

// check: what the reader did since the last time had no errors, and took no longer
// than usual, or than what may be on a busy machine.
func (r *reader) check(t *testing.T, when string, usual samples) samples {
	t.Helper()
	took, wrong := r.take()
	t.Logf("local requests in east %s: %v", when, took)
	for _, err := range wrong {
		t.Errorf("%s: %v", when, err)
	}
	if limit := max(5*usual.at(99), 2*time.Second); took.at(99) > limit {
		t.Errorf("%s: one in a hundred local requests takes more than %s", when, took.at(99))
	}
	return took
}

// check: the writer was not kept from writing.
func (w *writer) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("writes by the others: %d; the longest time between two: %s", len(w.acknowledged), w.worst.Round(time.Millisecond))
	for _, err := range w.errors {
		t.Errorf("a write of one that was not cut off: %v", err)
	}
	if w.worst > stallLimit {
		t.Errorf("for %s one that was not cut off could write nothing", w.worst)
	}
}

// eventually polls until check is content.
func eventually(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := fmt.Errorf("not tried")
	for {
		err := check(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %s: %v", what, limit, last)
		case <-tick.C:
		}
	}
	t.Logf("%s: after %s", what, time.Since(began).Round(10*time.Millisecond))
}
