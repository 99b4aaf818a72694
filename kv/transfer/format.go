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
//	codec   1 byte    encoding of the payload
//	raw     4 bytes   length of the payload
//	stored  4 bytes   length of the encoded payload
//	sum     4 bytes   CRC-32C of the 10 bytes before and of the encoded payload
//	…                 encoded payload
//
// with big-endian numbers. H (fileHeader) is the first block. For each keyspace follow S
// (Section), any number of K, and F (sectionEnd). E (fileEnd) ends the file. All but K are
// JSON. A K block is a list of key records, ascending:
//
//	uvarint length, key, uvarint length, value,
//	uvarint mod revision, create revision, version, varint lease
//
// The checksums detect damage on disk. The counts and the SHA-256 over all payloads, in F
// and E, detect missing and misplaced blocks.
const magic = "ATOLLKV1"

// formatVersion is incremented when old readers would misread the format.
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
	// blockBytes is the size at which a block of keys is complete. A record is never
	// divided.
	blockBytes = 256 << 10
	// maxBlock is above the size of any block: a larger length means damage.
	maxBlock = 1 << 30
)

// ErrDamaged is returned if the contents of a backup file do not match its checksums or
// format.
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
	// Leases by ID, as they were granted.
	Leases []SectionLease `json:"leases,omitempty"`

	// Keys and Bytes are stored at the section's end, and set once that has been read.
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
		// BestSpeed is several times faster, and files are only a few percent larger.
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

// blockReader reads blocks and validates everything.
type blockReader struct {
	r      io.Reader
	offset int64 // of the next block
	sum    hash.Hash
	table  *crc32.Table
}

func newBlockReader(r io.Reader, offset int64) *blockReader {
	return &blockReader{r: r, offset: offset, sum: sha256.New(), table: crc32.MakeTable(crc32.Castagnoli)}
}

func (b *blockReader) damaged(what string) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrDamaged, b.offset, what)
}

// read returns the next block; the caller owns its payload.
func (b *blockReader) read() (kind byte, payload []byte, err error) {
	var head [headLength]byte
	if err := b.full(head[:]); err != nil {
		return 0, nil, err
	}
	raw, length := binary.BigEndian.Uint32(head[2:]), binary.BigEndian.Uint32(head[6:])
	if raw > maxBlock || length > maxBlock || length > raw {
		return 0, nil, b.damaged("invalid block length")
	}
	// Read in pieces: a damaged length must not cause a large allocation.
	var stored bytes.Buffer
	if _, err := io.CopyN(&stored, b.r, int64(length)); err != nil {
		return 0, nil, b.short(err)
	}
	if crc32.Update(crc32.Checksum(head[:10], b.table), b.table, stored.Bytes()) != binary.BigEndian.Uint32(head[10:]) {
		return 0, nil, b.damaged("checksum mismatch in a block")
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
		return 0, nil, b.damaged(fmt.Sprintf("unknown codec %d of a block", head[1]))
	}
	if len(payload) != int(raw) {
		return 0, nil, b.damaged("wrong length of a block")
	}
	b.offset += headLength + int64(length)
	return head[0], payload, nil
}

// add includes a block in the checksum over all.
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
		return b.damaged("unexpected end of file")
	}
	return err
}

// appendRecord and parseRecord encode and decode the records of a K block.
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

// parseRecord decodes the first record of b. Key and value are slices of b.
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
