package faults_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestBugsAreDetected: a run without violations proves something only if the checks detect bugs. Each
// case injects a bug that others have made, without any other fault.
func TestBugsAreDetected(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	t.Parallel()
	st := newStage(t)
	for name, bug := range map[string]struct {
		tamper    func(kv.SharedTable) kv.Table
		violation string // a regular expression for a violation
	}{
		"a server assumes that it is the only writer": {
			func(t kv.SharedTable) kv.Table { return exclusive{t} }, "after an answer from|it reached revision"},
		"reads come from a lagging replica": {
			func(t kv.SharedTable) kv.Table { return &lagging{SharedTable: t} }, "after an answer from"},
		"rows of the log that are not visible yet are skipped": {
			func(t kv.SharedTable) kv.Table { return &forgetful{SharedTable: t} }, "got events|the log has changes of"},
		"a commit is retried without checking the first attempt": {
			func(t kv.SharedTable) kv.Table { return &hasty{SharedTable: t} }, "no call can have made"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plan{seed: 1, lasts: time.Second, minRevision: 100, recovery: time.Second, tamper: bug.tamper}
			_, o := perform(t, st, p)
			if o.Changes < 10 {
				t.Fatal("too few changes to be conclusive:", o.Totals)
			}
			all := strings.Join(o.Violations, "\n")
			if !regexp.MustCompile(bug.violation).MatchString(all) {
				t.Errorf("no violation matches %q; %v\n%s", bug.violation, o.Totals, all)
			}
		})
	}
}

// exclusive claims that no one else writes, so that the engine trusts its cache.
type exclusive struct{ kv.Table }

func (exclusive) Exclusive() bool { return true }

// lagging reads at a revision two below the current one.
type lagging struct {
	kv.SharedTable
}

func (l *lagging) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (*kv.RangeResult, kv.Head, error) {
	if req.Revision <= 0 {
		head, err := l.Head(ctx)
		if err != nil {
			return nil, head, err
		}
		if head.Revision > 3 && head.Revision-2 >= head.Compacted {
			req.Revision = head.Revision - 2
		}
	}
	res, head, err := l.SharedTable.Range(ctx, req, wantCount)
	if err == nil && req.Revision > 0 {
		res.Revision = req.Revision
	}
	return res, head, err
}

// forgetful loses the last change of some batches of the log.
type forgetful struct{ kv.SharedTable }

func (f *forgetful) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, kv.Head, error) {
	changes, head, err := f.SharedTable.Changes(ctx, after, upTo, limit, withPrev)
	if n := len(changes); n > 1 && n%3 == 0 {
		changes = changes[:n-1]
	}
	return changes, head, err
}

// hasty commits a second time, as if the first result were unknown.
type hasty struct{ kv.SharedTable }

func (h *hasty) Update(ctx context.Context, ahead []kv.Lookup, fn func(kv.Tx) error) error {
	if err := h.SharedTable.Update(ctx, ahead, fn); err != nil {
		return err
	}
	return h.SharedTable.Update(ctx, ahead, fn)
}
