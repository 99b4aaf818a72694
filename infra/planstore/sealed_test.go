package planstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
)

// TestSealedChunks checks that sealed parts of any size are read back, and that damage is detected.
func TestSealedChunks(t *testing.T) {
	random := rand.New(rand.NewChaCha8([32]byte{1}))
	want := map[change.Address][]byte{}
	chunk := &SealedChunk{}
	for i := range 40 {
		address := change.Address{Namespace: "shop", Type: "demo_thing", Name: fmt.Sprint("n-", i), Deposed: []string{"", "old"}[i%2]}
		sealed := make([]byte, random.IntN(100_000))
		for j := range sealed {
			sealed[j] = byte(random.Uint32())
		}
		want[address] = sealed
		if err := chunk.Add(address, sealed); err != nil {
			t.Fatal(err)
		}
	}
	pieces, err := chunk.Take()
	if err != nil || len(pieces) < 2 {
		t.Fatalf("%d pieces, %v", len(pieces), err)
	}
	for _, piece := range pieces {
		if len(piece) > MaxPiece {
			t.Errorf("a piece of %d bytes", len(piece))
		}
	}
	got, err := OpenSealed(pieces)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d parts, %v", len(got), err)
	}
	for address, sealed := range want {
		if !bytes.Equal(got[address], sealed) {
			t.Errorf("the sealed part of %s differs", address)
		}
	}
	// The next chunk has nothing of the previous one.
	next := change.Address{Type: "demo_thing", Name: "next"}
	if err := chunk.Add(next, []byte("sealed")); err != nil {
		t.Fatal(err)
	}
	if more, err := chunk.Take(); err != nil {
		t.Fatal(err)
	} else if got, err := OpenSealed(more); err != nil || len(got) != 1 || string(got[next]) != "sealed" {
		t.Errorf("the next chunk is %v, %v", got, err)
	}
	if none, err := chunk.Take(); err != nil || none != nil {
		t.Errorf("an empty chunk is %v, %v", none, err)
	}
	whole := bytes.Join(pieces, nil)
	for range 80 {
		damaged := bytes.Clone(whole)
		if random.IntN(2) == 0 {
			damaged = damaged[:random.IntN(len(damaged)-1)+1]
		} else {
			damaged[10+random.IntN(len(damaged)-10)] ^= byte(1 + random.IntN(255))
		}
		if _, err := OpenSealed([][]byte{damaged}); !errors.Is(err, errSealed) {
			t.Fatalf("damage was not detected: %v", err)
		}
	}
}

func TestEmptySealedChunk(t *testing.T) {
	pieces, err := (&SealedChunk{}).Take()
	if err != nil || pieces != nil {
		t.Fatalf("%v, %v", pieces, err)
	}
	if got, err := OpenSealed(pieces); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}
