package planstore

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
)

// store keeps chunks like a keyspace.
type store map[int][][]byte

func (s store) put(chunk int, pieces [][]byte) error {
	for _, p := range pieces {
		if len(p) > MaxPiece {
			return fmt.Errorf("a piece of %d bytes", len(p))
		}
		s[chunk] = append(s[chunk], bytes.Clone(p))
	}
	return nil
}

func (s store) load(chunk int) ([][]byte, error) { return s[chunk], nil }

func numbered(i int) *change.Change {
	actions := []change.Action{change.NoOp, change.NoOp, change.NoOp, change.Create, change.Update}
	c := &change.Change{Address: change.Address{Namespace: "shop", Type: "t", Name: fmt.Sprintf("n%06d", i)}, Action: actions[i%5]}
	if c.Action != change.NoOp {
		c.After = &change.Value{JSON: json.RawMessage(fmt.Sprintf(`{"id":%d}`, i))}
	}
	if i%1000 == 7 {
		c.Deferred = "later"
	}
	return c
}

func chunked(t *testing.T, n int, change func(i int) *change.Change) (*Contents, store) {
	t.Helper()
	s := store{}
	chunks := NewChunkWriter(s.put)
	for i := range n {
		if err := chunks.Add(change(i)); err != nil {
			t.Fatal(err)
		}
	}
	contents, err := chunks.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return contents, s
}

// TestChunks checks that all changes come back, by page and by action, and verified.
func TestChunks(t *testing.T) {
	const n = 10_000
	contents, s := chunked(t, n, numbered)
	if len(contents.Chunks) < 4 || contents.Counts.Changes != n || contents.Counts.Create != n/5 {
		t.Fatalf("%d chunks, %+v", len(contents.Chunks), contents.Counts)
	}
	for i := range contents.Chunks {
		if err := contents.Chunks[i].Read(s[i], true, nil, func(*change.Change) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	for _, filter := range [][]change.Action{nil, {change.Create}, {change.Update, change.Deferred}, {change.Delete}} {
		want := 0
		for i := range n {
			if c := numbered(i); len(filter) == 0 || strings.Contains(fmt.Sprint(filter), string(c.IndexedAction())) {
				want++
			}
		}
		var after *change.Address
		got := 0
		for {
			page, more, err := contents.Page(after, 700, filter, s.load)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range page {
				if after != nil && c.Address.Compare(*after) <= 0 {
					t.Fatalf("%s after %s", c.Address, after)
				}
				after = &c.Address
				got++
			}
			if !more {
				break
			}
			if len(page) != 700 {
				t.Fatalf("a page of %d changes, although there are more", len(page))
			}
		}
		if got != want {
			t.Errorf("%v: %d, want %d", filter, got, want)
		}
	}
}

// TestChunksAreVerified checks that a modified, a missing and a misfiled change are detected.
func TestChunksAreVerified(t *testing.T) {
	const n = 3000
	contents, _ := chunked(t, n, numbered)
	all := func(*change.Change) bool { return true }
	other, s := chunked(t, n, func(i int) *change.Change {
		c := numbered(i)
		if i == 1234 {
			c.Detail = "another"
		}
		return c
	})
	if contents.Digest == other.Digest {
		t.Error("a modified change has the same digest")
	}
	if err := contents.Chunks[0].Read(s[0], true, nil, all); err == nil {
		t.Error("a modified change passes")
	}
	if err := other.Check(contents.Digest); err == nil {
		t.Error("modified contents pass")
	}
	if err := contents.Check(contents.Digest); err != nil {
		t.Error(err)
	}
	fewer, s := chunked(t, n-1, numbered)
	if last := len(fewer.Chunks) - 1; contents.Chunks[last].Read(s[last], true, nil, all) == nil {
		t.Error("a missing change is not detected")
	}
	if err := contents.Chunks[0].Read([][]byte{[]byte("garbage")}, true, nil, all); err == nil {
		t.Error("garbage passes")
	}
}

// TestMisfiledChangeIsDetected checks that a change cannot be listed under another action.
func TestMisfiledChangeIsDetected(t *testing.T) {
	contents, s := chunked(t, 10, numbered)
	unpacked, err := gzip.NewReader(bytes.NewReader(s[0][0]))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(bytes.Replace(text, []byte("create {"), []byte("no-op {"), 1)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if contents.Chunks[0].Read([][]byte{packed.Bytes()}, true, []change.Action{change.Create}, func(*change.Change) bool { return true }) == nil {
		t.Error("a change was hidden")
	}
}

// TestChunksRequireOrder checks that the digest cannot depend on the order in which changes are
// decided.
func TestChunksRequireOrder(t *testing.T) {
	c := NewChunkWriter(store{}.put)
	for _, i := range []int{1, 2} {
		if err := c.Add(numbered(i)); err != nil {
			t.Fatal(err)
		}
	}
	if c.Add(numbered(2)) == nil || c.Add(numbered(0)) == nil {
		t.Error("a change out of order or a duplicate is accepted")
	}
}

// TestLargeChange checks that a change larger than a piece is stored in several.
func TestLargeChange(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte('0' + r.IntN(64)) // JSON escapes some of them
	}
	text, err := json.Marshal(string(noise))
	if err != nil {
		t.Fatal(err)
	}
	contents, s := chunked(t, 3, func(i int) *change.Change {
		c := numbered(i)
		if i == 1 {
			c.After = &change.Value{JSON: text}
		}
		return c
	})
	if len(contents.Chunks) != 3 || contents.Chunks[1].Pieces < 2 || len(s[1]) != contents.Chunks[1].Pieces {
		t.Fatalf("%+v", contents.Chunks)
	}
	if err := contents.Chunks[1].Read(s[1], true, nil, func(c *change.Change) bool {
		if !bytes.Equal(c.After.JSON, text) {
			t.Error("it differs when it is read")
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAddNoOp compares the hand-written encoding of a no-op with that of encoding/json.
func TestAddNoOp(t *testing.T) {
	store := func(into *[]byte) func(int, [][]byte) error {
		return func(_ int, pieces [][]byte) error {
			for _, p := range pieces {
				*into = append(*into, p...)
			}
			return nil
		}
	}
	var quick, whole []byte
	a, b := NewChunkWriter(store(&quick)), NewChunkWriter(store(&whole))
	for _, address := range []change.Address{
		{Type: "aaa", Name: "n"},
		{Namespace: "shop", Type: "demo_thing", Name: "a"},
		{Namespace: "shop", Type: "demo_thing", Name: `a"b\`},
		{Namespace: "shop", Type: "demo_thing", Name: "a<b>&c"},
		{Namespace: "shop", Type: "demo_thing", Name: "aä"},
		{Namespace: "shop", Type: "demo_thing", Name: "b"},
		{Namespace: "shop", Type: "demo_thing", Name: "c", Deposed: "1"},
		{Namespace: "shop", Type: "demo_thing", Name: "d", Data: true},
	} {
		if err := errors.Join(a.AddNoOp(address), b.Add(&change.Change{Address: address, Action: change.NoOp})); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AddNoOp(change.Address{Namespace: "shop", Type: "demo_thing", Name: "a"}); err == nil {
		t.Error("an address out of order is accepted")
	}
	is, err := a.Finish()
	if err != nil {
		t.Fatal(err)
	}
	want, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(is, want) || !bytes.Equal(quick, whole) {
		t.Errorf("got %+v\nwant, from encoding/json, %+v", is, want)
	}
}
