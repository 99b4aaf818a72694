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
	// answerLimit limits how long a shared read may wait for an answer: 4 s in a server that lost its
	// database, and the delay of a busy machine.
	answerLimit = 8 * time.Second
	// returnLimit limits the recovery after a cut: a server gives up a silent database after 6 s and may
	// take 5 s to connect, and the machine may be busy.
	returnLimit = 15 * time.Second
	// stallLimit limits how long other members may wait for the database while it still has an open
	// transaction of the member that was cut off.
	stallLimit = 12 * time.Second
)

// TestMemberCutOff cuts off a member from the database, the other members and their servers. Its local kinds
// work as before. Shared kinds soon fail with a clear error. The other members notice nothing. Afterwards
// the member's watches have missed nothing.
func TestMemberCutOff(t *testing.T) {
	s := stretched(t)
	if _, err := write(t.Context(), s.notes(t, "west"), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	var observers []*observer
	for _, m := range members {
		observers = append(observers, startObserver(t, m, s.notes(t, m)))
	}
	east := observers[slices.Index(members, "east")]
	w := startWriter(t, s.notes(t, "west"), "island")
	local := startReader(t, s.client(t, "east"))
	shared := startSharedReader(t, s, "east", "read-me")
	pass(t, 4*time.Second)
	before := local.check(t, "before the cut", samples(nil))

	heal := s.network.cut(t, "east", s.network.others("east")...)
	cut := time.Now()
	s.useLocally(t, "east", "passing")
	s.waitDeleted(t, "east", "passing", time.Minute)
	s.checkUnavailable(t, "east")
	pass(t, *cutTime-time.Since(cut))
	during := local.check(t, "during the cut", before)
	heal()
	healed := time.Now()

	newest := w.last()
	eventually(t, returnLimit, "the watch in east has caught up", func(context.Context) error { return east.saw(newest) })
	eventually(t, returnLimit, "east reads shared objects", func(ctx context.Context) error {
		_, err := s.notes(t, "east").Get(ctx, "read-me", metav1.GetOptions{})
		return err
	})
	pass(t, 4*time.Second)
	local.check(t, "after the cut", during)
	checkUnanswered(t, shared.between(cut, healed.Add(-answerLimit)))
	t.Logf("shared reads in east failed until %s after the end of the cut", lastFailure(shared.between(healed.Add(-answerLimit), time.Now()), healed).Round(10*time.Millisecond))

	w.end()
	for _, o := range observers {
		eventually(t, returnLimit, "the watch in "+o.member+" got all events", func(context.Context) error { return o.saw(w.last()) })
		o.check(t, w)
		t.Logf("from a write in west to its event in %s: before %v; during %v; after %v; watches resumed: %d",
			o.member, o.delays(w, time.Time{}, cut.Add(-time.Second)), o.delays(w, cut, healed), o.delays(w, healed, time.Now()), o.resumed)
	}
	t.Logf("the first event in east came %s after the end of the cut", east.firstAfter(healed).Round(time.Millisecond))
	w.check(t)
}

// pass waits for d, during a cut or a measurement.
func pass(t *testing.T, d time.Duration) {
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

// useLocally runs kubectl like an administrator of a member who uses local kinds only. None of them is
// shared, but kubectl and controllers discover all kinds. The last command deletes a namespace.
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
			t.Errorf("during the cut: %v", err)
		}
		t.Logf("during the cut: kubectl %s takes %s", strings.Join(args, " "), time.Since(began).Round(10*time.Millisecond))
	}
}

// waitDeleted waits until a namespace is deleted. Its controller must list the remaining objects of every
// kind, shared ones included.
func (s *stage) waitDeleted(t *testing.T, member, name string, limit time.Duration) {
	t.Helper()
	client := s.client(t, member).CoreV1().Namespaces()
	eventually(t, limit, "namespace "+name+" is deleted", func(ctx context.Context) error {
		namespace, err := client.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("the namespace has conditions %v", namespace.Status.Conditions)
	})
}

// checkUnavailable checks that shared objects cannot be used, and that the error names the reason.
func (s *stage) checkUnavailable(t *testing.T, member string) {
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

// unreachable is in the error of a server without its database.
const unreachable = "the datastore of this server cannot be reached"

// checkUnanswered checks that all these reads failed in time with code 503.
func checkUnanswered(t *testing.T, answers []answer) {
	t.Helper()
	var took samples
	named := 0
	for _, a := range answers {
		took = append(took, a.took)
		if a.took > answerLimit || !apierrors.IsServiceUnavailable(a.err) {
			t.Errorf("a shared read while the database was unreachable: after %s: %v", a.took, a.err)
		} else if strings.Contains(a.err.Error(), unreachable) {
			named++
		}
	}
	// On a busy machine, the member's check of the APIService may time out. Then the member itself answers,
	// with the same code but without the reason.
	if named < len(answers)/2 {
		t.Errorf("only %d of %d answers have the reason", named, len(answers))
	}
	if len(answers) == 0 {
		t.Error("no shared reads")
		return
	}
	t.Logf("shared reads while the database is unreachable, %v: %v", took, answers[len(answers)-1].err)
}

// lastFailure returns how long after the end of a cut the last read failed.
func lastFailure(answers []answer, healed time.Time) (after time.Duration) {
	for _, a := range answers {
		if a.err != nil {
			after = max(after, a.began.Add(a.took).Sub(healed))
		}
	}
	return after
}

// check fails the test if a local request since the last check failed, or if they took much longer than usual.
// The limit allows for a busy machine.
func (r *reader) check(t *testing.T, when string, usual samples) samples {
	t.Helper()
	took, errs := r.take()
	t.Logf("local requests in east %s: %v", when, took)
	for _, err := range errs {
		t.Errorf("%s: %v", when, err)
	}
	if limit := max(5*usual.at(99), 2*time.Second); took.at(99) > limit {
		t.Errorf("%s: one in a hundred local requests takes more than %s", when, took.at(99))
	}
	return took
}

// check fails the test if a write failed, or if writes stalled.
func (w *writer) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("writes by the others: %d; the longest time between two: %s", len(w.acknowledged), w.worst.Round(time.Millisecond))
	for _, err := range w.errors {
		t.Errorf("a write in a member that was not cut off: %v", err)
	}
	if w.worst > stallLimit {
		t.Errorf("a member that was not cut off could not write for %s", w.worst)
	}
}

// eventually polls until check returns nil.
func eventually(t *testing.T, limit time.Duration, goal string, check func(context.Context) error) {
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
			t.Fatalf("%s: not after %s: %v", goal, limit, last)
		case <-tick.C:
		}
	}
	t.Logf("%s: after %s", goal, time.Since(began).Round(10*time.Millisecond))
}
