package transfer

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// The format of a backup file: the magic, then blocks, each
//
//	kind    1 byte    H, S, K, F or E
//	codec   1 byte    how the payload is stored
//	raw     4 bytes   length of the payload
//	stored  4 bytes   length of what is stored of it
//	sum     4 bytes   CRC-32C of the 10 bytes before and of what is stored
//	…                 what is stored
//
// with big-endian numbers. H (fileHeader) comes first. For each keyspace follow S
// (Section), any number of K, and F (sectionEnd); then E (fileEnd) ends the file. All
// but K are JSON. A K is records of keys, ascending:
//
//	uvarint length, key, uvarint length, value,
//	uvarint mod revision, create revision, version, varint lease
//
// The sums find what a disk has damaged; the counts and the SHA-256 over all
// payloads, in F and E, find what is missing or out of place.
const magic = "ATOLLKV1"

// formatVersion is raised when readers of the old one would misunderstand.
const formatVersion = 1

const (
	blockHeader  = 'H'
	blockSection = 'S'
	blockKeys    = 'K'
	blockFinish  = 'F'
	blockEnd     = 'E'

	codecPlain = 0
	codecGzip  = 1

	headLength = 14
	// blockBytes is when a block of keys is full. A record is never divided.
	blockBytes = 256 << 10
	// maxBlock is more than any block is: whatever claims to be larger is damage.
	maxBlock = 1 << 30
)

// ErrDamaged: a backup file is not as it was written.
var ErrDamaged = errors.New("the backup file is damaged")

type fileHeader struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
}

// Section is one keyspace in a backup file.
type Section struct {
	Name string `json:"name"`
	// Revision of the state that was backed up.
	Revision kv.Revision `json:"revision"`
	// Leases by id, as they were granted.
	Leases []SectionLease `json:"leases,omitempty"`

	// Keys and Bytes are in the section's end, and known once it has been read.
	Keys   int64 `json:"-"`
	Bytes  int64 `json:"-"`
	offset int64 // of its first block of keys
}

// SectionLease is a lease in a backup file.
type SectionLease struct {
	ID  kv.LeaseID `json:"id"`
	TTL int64      `json:"ttl"` // seconds
}

type sectionEnd struct {
	Keys  int64 `json:"keys"`
	Bytes int64 `json:"bytes"`
}

type fileEnd struct {
	Sections int    `json:"sections"`
	SHA256   string `json:"sha256"`
}

// blockWriter writes blocks.
type blockWriter struct {
	w     io.Writer
	gzip  bool
	sum   hash.Hash
	buf   bytes.Buffer
	zip   *gzip.Writer
	table *crc32.Table
}

func newBlockWriter(w io.Writer, compress bool) (*blockWriter, error) {
	b := &blockWriter{w: w, gzip: compress, sum: sha256.New(), table: crc32.MakeTable(crc32.Castagnoli)}
	if compress {
		// The level that is several times faster for a few percent of size.
		zip, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
		if err != nil {
			return nil, err
		}
		b.zip = zip
	}
	_, err := io.WriteString(w, magic)
	return b, err
}

func (b *blockWriter) write(kind byte, payload []byte) error {
	b.sum.Write([]byte{kind})
	b.sum.Write(payload)
	stored, codec := payload, byte(codecPlain)
	if b.gzip && kind == blockKeys {
		b.buf.Reset()
		b.zip.Reset(&b.buf)
		if _, err := b.zip.Write(payload); err != nil {
			return err
		}
		if err := b.zip.Close(); err != nil {
			return err
		}
		if b.buf.Len() < len(payload) {
			stored, codec = b.buf.Bytes(), codecGzip
		}
	}
	var head [headLength]byte
	head[0], head[1] = kind, codec
	binary.BigEndian.PutUint32(head[2:], uint32(len(payload)))
	binary.BigEndian.PutUint32(head[6:], uint32(len(stored)))
	sum := crc32.Update(crc32.Checksum(head[:10], b.table), b.table, stored)
	binary.BigEndian.PutUint32(head[10:], sum)
	if _, err := b.w.Write(head[:]); err != nil {
		return err
	}
	_, err := b.w.Write(stored)
	return err
}

func (b *blockWriter) writeJSON(kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.write(kind, text)
}

// blockReader reads them back, and believes nothing.
type blockReader struct {
	r      io.Reader
	offset int64 // of what comes next
	sum    hash.Hash
	table  *crc32.Table
}

func newBlockReader(r io.Reader, offset int64) *blockReader {
	return &blockReader{r: r, offset: offset, sum: sha256.New(), table: crc32.MakeTable(crc32.Castagnoli)}
}

func (b *blockReader) damaged(what string) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrDamaged, b.offset, what)
}

// read gives the next block; its payload is the caller's to keep.
func (b *blockReader) read() (kind byte, payload []byte, err error) {
	var head [headLength]byte
	if err := b.full(head[:]); err != nil {
		return 0, nil, err
	}
	raw, length := binary.BigEndian.Uint32(head[2:]), binary.BigEndian.Uint32(head[6:])
	if raw > maxBlock || length > maxBlock || length > raw {
		return 0, nil, b.damaged("the length of a block makes no sense")
	}
	// Not all at once: the length may be a lie, and memory is dear.
	var stored bytes.Buffer
	if _, err := io.CopyN(&stored, b.r, int64(length)); err != nil {
		return 0, nil, b.short(err)
	}
	if crc32.Update(crc32.Checksum(head[:10], b.table), b.table, stored.Bytes()) != binary.BigEndian.Uint32(head[10:]) {
		return 0, nil, b.damaged("the checksum of a block does not hold")
	}
	payload = stored.Bytes()
	switch head[1] {
	case codecPlain:
	case codecGzip:
		zip, err := gzip.NewReader(&stored)
		if err != nil {
			return 0, nil, b.damaged(err.Error())
		}
		if payload, err = io.ReadAll(io.LimitReader(zip, int64(raw)+1)); err != nil {
			return 0, nil, b.damaged(err.Error())
		}
	default:
		return 0, nil, b.damaged(fmt.Sprintf("a block is stored in the unknown way %d", head[1]))
	}
	if len(payload) != int(raw) {
		return 0, nil, b.damaged("a block has another length than it says")
	}
	b.offset += headLength + int64(length)
	return head[0], payload, nil
}

// add counts a block in the sum over all.
func (b *blockReader) add(kind byte, payload []byte) {
	b.sum.Write([]byte{kind})
	b.sum.Write(payload)
}

func (b *blockReader) full(p []byte) error {
	_, err := io.ReadFull(b.r, p)
	return b.short(err)
}

func (b *blockReader) short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return b.damaged("it ends too early")
	}
	return err
}

// appendRecord and parseRecord are the two sides of a K block.
func appendRecord(to []byte, e *kv.KeyValue) []byte {
	to = binary.AppendUvarint(to, uint64(len(e.Key)))
	to = append(to, e.Key...)
	to = binary.AppendUvarint(to, uint64(len(e.Value)))
	to = append(to, e.Value...)
	to = binary.AppendUvarint(to, uint64(e.ModRevision))
	to = binary.AppendUvarint(to, uint64(e.CreateRevision))
	to = binary.AppendUvarint(to, uint64(e.Version))
	return binary.AppendVarint(to, e.Lease)
}

// parseRecord takes a record off the front of b. Key and value stay part of b.
func parseRecord(b []byte) (e kv.KeyValue, rest []byte, ok bool) {
	ok = true
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			ok, b = false, nil
			return 0
		}
		b = b[size:]
		return n
	}
	bytes := func() []byte {
		n := number()
		if n > uint64(len(b)) {
			ok, b = false, nil
			return nil
		}
		out := b[:n:n]
		b = b[n:]
		return out
	}
	e.Key, e.Value = bytes(), bytes()
	e.ModRevision, e.CreateRevision, e.Version = int64(number()), int64(number()), int64(number())
	lease, n := binary.Varint(b)
	if n <= 0 {
		return e, nil, false
	}
	e.Lease = lease
	return e, b[n:], ok
}
