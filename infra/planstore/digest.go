package planstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"github.com/atoll-dev/atoll/infra/change"
)

// A plan's digest is a tree of two levels: one digest over the changes of each chunk, and one over the
// chunks. So one chunk can be verified without the others. Chunk boundaries depend on the changes alone.

// chunkDigest is the digest of a chunk's canonical changes. Each level starts with its own name, so
// that no chunk can be taken for a plan.
type chunkDigest struct {
	h    hash.Hash
	line []byte
}

func newChunkDigest() *chunkDigest {
	h := sha256.New()
	h.Write([]byte("atoll plan chunk 1\n"))
	return &chunkDigest{h: h}
}

// add includes the action that the change is listed under. Otherwise a deletion could be listed
// under another action, and a filter for deletions would miss it.
func (d *chunkDigest) add(filed change.Action, change []byte) {
	d.line = append(append(append(d.line[:0], filed...), ' '), change...)
	sum := sha256.Sum256(d.line)
	d.h.Write(sum[:])
}

func (d *chunkDigest) String() string { return hex.EncodeToString(d.h.Sum(nil)) }

// digestOf returns the digest over all chunks.
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
