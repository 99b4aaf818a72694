package faults_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestBugsAreSeen: runs that find nothing mean something only if they would
// have found something. Mistakes that others have made are made here on
// purpose, without any other fault.
func TestBugsAreSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	t.Parallel()
	st := newStage(t)
	for name, bug := range map[string]struct {
		tamper func(kv.SharedTable) kv.Table
		seen   string // in what a violation says: an expression
	}{
		"a server believes that it is the only one": {
			func(t kv.SharedTable) kv.Table { return exclusive{t} }, "had been told|it came to revision"},
		"reads come from a replica that lags": {
			func(t kv.SharedTable) kv.Table { return &lagging{SharedTable: t} }, "had been told"},
		"rows of the log that are not visible yet are passed over": {
			func(t kv.SharedTable) kv.Table { return &forgetful{SharedTable: t} }, "it was told of|the log has changes of"},
		"a commit is tried again without looking": {
			func(t kv.SharedTable) kv.Table { return &hasty{SharedTable: t} }, "was made by nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plan{seed: 1, lasts: time.Second, enough: 100, recovery: time.Second, tamper: bug.tamper}
			_, o := perform(t, st, p)
			if o.Changes < 10 {
				t.Fatal("too little happened to mean anything:", o.Totals)
			}
			all := strings.Join(o.Violations, "\n")
			if !regexp.MustCompile(bug.seen).MatchString(all) {
				t.Errorf("nobody said %q; %v\n%s", bug.seen, o.Totals, all)
			}
		})
	}
}

// exclusive hides that others write, so that the engine trusts its cache.
type exclusive struct{ kv.Table }

func (exclusive) Exclusive() bool { return true }

// lagging reads what was there a while ago.
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

// forgetful loses the last change of some pieces of the log.
type forgetful struct{ kv.SharedTable }

func (f *forgetful) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, kv.Head, error) {
	changes, head, err := f.SharedTable.Changes(ctx, after, upTo, limit, withPrev)
	if n := len(changes); n > 1 && n%3 == 0 {
		changes = changes[:n-1]
	}
	return changes, head, err
}

// hasty commits a second time, as if it had not heard of the first.
type hasty struct{ kv.SharedTable }

func (h *hasty) Update(ctx context.Context, ahead []kv.Lookup, fn func(kv.Tx) error) error {
	if err := h.SharedTable.Update(ctx, ahead, fn); err != nil {
		return err
	}
	return h.SharedTable.Update(ctx, ahead, fn)
}
