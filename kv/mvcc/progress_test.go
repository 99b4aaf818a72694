package mvcc_test

import (
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestProgressNeverDecreases: a watch gets its events a moment before the hub counts their
// revision. Progress requested in between must not report an older revision than the events
// did.
func TestProgressNeverDecreases(t *testing.T) {
	t.Parallel() // it mostly waits for the disk
	k := openStore(t, mvcc.Options{})
	w, err := k.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil)})
	if err != nil {
		t.Fatal(err)
	}
	const writes = 2000
	go func() {
		for i := range writes {
			if _, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", fmt.Sprint(i))}}); err != nil && t.Context().Err() == nil {
				t.Error(err)
				return
			}
		}
	}()
	var through kv.Revision
	var calls int64
	for through < writes+1 {
		w.RequestProgress()
		calls++
		r := <-w.Responses()
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if r.Revision < through {
			t.Fatalf("after revision %d it reported revision %d (progress: %t)", through, r.Revision, r.Progress)
		}
		if r.Progress && (r.Answers < 1 || r.Answers > calls) {
			t.Fatalf("it answered %d of %d calls", r.Answers, calls)
		}
		through = r.Revision
	}
}

// TestProgressAnswers checks that the answer to a call covers every revision acknowledged
// before the call.
func TestProgressAnswers(t *testing.T) {
	k := openStore(t, mvcc.Options{})
	w, err := k.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("other"))})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 500
	at := make(chan kv.Revision, calls) // acknowledged when each call was made
	go func() {
		for i := range calls {
			res, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", fmt.Sprint(i))}})
			if err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
			at <- res.Revision
			w.RequestProgress()
		}
	}()
	for answered := int64(0); answered < calls; {
		r := <-w.Responses()
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for ; answered < r.Answers; answered++ {
			if want := <-at; r.Revision < want {
				t.Fatalf("call %d at revision %d was answered with revision %d", answered+1, want, r.Revision)
			}
		}
	}
}
