package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// A plan's digest is a tree of two levels: over the changes of each chunk, and over the chunks. So
// one chunk can be checked without the others, and which changes
// are in a chunk depends on nothing but the changes.

// chunkDigest is over the canonical bytes of the changes of a chunk. Each level begins with
// a name of its own, so that no chunk can pass for a plan.
type chunkDigest struct {
	h    hash.Hash
	line []byte
}

func newChunkDigest() *chunkDigest {
	h := sha256.New()
	h.Write([]byte("atoll plan chunk 1\n"))
	return &chunkDigest{h: h}
}

// add takes the action under which a change is found as well: else one could be hidden from who
// looks for deletions.
func (d *chunkDigest) add(filed Action, change []byte) {
	d.line = append(append(append(d.line[:0], filed...), ' '), change...)
	sum := sha256.Sum256(d.line)
	d.h.Write(sum[:])
}

func (d *chunkDigest) String() string { return hex.EncodeToString(d.h.Sum(nil)) }

// digestOf is over all chunks.
func digestOf(chunks []ChunkInfo) string {
	h := sha256.New()
	h.Write([]byte("atoll plan 1\n"))
	for i := range chunks {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(chunks[i].Changes))
		h.Write(n[:])
		h.Write([]byte(chunks[i].Digest))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
