package mvcc_test

import (
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestProgressNeverGoesBack: a watch gets its events a moment before the hub
// counts their revision. Progress that is asked for in between must not tell of
// an older revision than the events did: readers would go back.
func TestProgressNeverGoesBack(t *testing.T) {
	t.Parallel() // it waits for the disk most of the time
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
	for through < writes+1 {
		w.RequestProgress()
		r := <-w.Responses()
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if r.Revision < through {
			t.Fatalf("after everything up to revision %d it told of %d (progress: %t)", through, r.Revision, r.Progress)
		}
		through = r.Revision
	}
}
